"""Maintenance: the services of a broker that run without a request.

services.py runs them. Each service is one `run_once`; two brokers may run the same one at once
without harm, and the few for which one broker is enough are run by a leader.
"""
