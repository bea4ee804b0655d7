"""Rows that a transaction locks before it locks jobs: deduplication keys and lane locks."""
