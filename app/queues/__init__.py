"""Queues and their configuration: few rows, cached in every process, never written on a hot path."""
