"""Locks: rows that are locked before jobs: idempotency, unique and claim keys, and lane locks."""
