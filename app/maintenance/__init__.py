"""Maintenance: the services of a broker that run without a request.

services.py calls their `run_once`. Two brokers may run the same service at once without harm. The
few services for which one broker is enough run only in one broker, the leader.
"""
