"""Queues: where jobs wait. Small, cached in every process, never written on the hot path."""
