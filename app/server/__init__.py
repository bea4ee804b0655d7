"""The HTTP server: uvicorn with timeouts, limits and graceful draining.

Contains no code about jobs.
"""
