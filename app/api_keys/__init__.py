"""API keys: which callers may call, for which operations and queues, and how often."""
