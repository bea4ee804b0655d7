"""Maintenance: the background services of a broker.

services.py calls their `run_once`. Several brokers can safely run the same service at the same
time. The few services that only one broker has to run are run by one broker at a time, the leader.
"""
