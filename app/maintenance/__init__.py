"""Maintenance: the services of a broker that run without a request.

services.py runs them: it calls the `run_once` of each. Two brokers may run the same service at once
without harm. The few services for which one broker is enough run in one, the leader.
"""
