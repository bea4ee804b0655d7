"""The HTTP server: uvicorn with timeouts, limits and graceful draining. Has no code about jobs."""
