"""Explains why a job is not running.

Reads the rows and rules by which the other packages decide whether a job runs. Changes nothing.
"""
