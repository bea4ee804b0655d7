"""Leases: claims, heartbeats and settlements.

This package owns the state `running` and every transition out of it.
"""
