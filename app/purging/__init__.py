"""Purging: waiting jobs of a queue, removed without a trace."""
