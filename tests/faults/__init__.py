"""Faults of the database: broken connections, failover, full disks, power cuts."""
