"""Leases: a job in a worker's hands. Owns the state running, and every way out of it."""
