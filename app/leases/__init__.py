"""Leases: jobs held by workers. Owns the state `running` and every transition out of it."""
