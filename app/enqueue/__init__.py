"""Enqueue: checks requested jobs, fills in their defaults, and stores them in the table `jobs`.

Unique keys, Idempotency-Keys, dependencies and `max_waiting` are part of it.
"""
