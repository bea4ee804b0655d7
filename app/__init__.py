"""Longshore: a REST job broker on Postgres."""
