"""Purging: removes waiting jobs of a queue and keeps no record of them."""
