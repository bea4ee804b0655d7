"""Locks rows that a transaction must lock before jobs: deduplication keys, and the lane locks."""
