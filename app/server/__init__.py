"""The HTTP server: uvicorn with timeouts, limits and graceful draining. Knows no job."""
