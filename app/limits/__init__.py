"""Limits: how many may run, at what rate, whose turn it is in a group, and which groups are at rest.

Nothing is counted up and down, so nothing can leak: what runs is read from the leases, what a rate let through from what it let through,
and all is decided with the lane's gate held (keys.sql).
"""
