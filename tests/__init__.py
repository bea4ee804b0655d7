"""Tests are named after behaviour, set up their data over HTTP, and run on a real Postgres."""
