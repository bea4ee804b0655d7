"""API keys: who may call, for what, and how much."""
