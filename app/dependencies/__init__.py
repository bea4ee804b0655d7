"""Dependencies: which jobs wait for which other jobs, their parents.

An enqueue stores them. The dependency resolver reads them when a parent finishes.
"""
