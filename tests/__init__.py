"""Tests name behaviour, arrange over HTTP, and run on a real Postgres."""
