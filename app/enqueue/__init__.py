"""Enqueues jobs: checks the requested jobs, fills in their defaults, and stores them in `jobs`.

Also enforces unique keys, Idempotency-Keys, dependencies and `max_waiting`.
"""
