"""Longshore: a REST job broker on Postgres."""

RELEASE = "0.1.0"  # also in pyproject.toml
