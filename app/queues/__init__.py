"""Queues and their configuration: few rows, cached in every process, rarely written."""
