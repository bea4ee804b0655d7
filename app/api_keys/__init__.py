"""API keys, which authenticate callers and limit the operations, queues and request rate of each
caller.
"""
