"""Inserts, reads, lists, updates, cancels and purges stored jobs."""
