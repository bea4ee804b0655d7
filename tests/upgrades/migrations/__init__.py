"""Migrations: up, down, concurrent, behind a reader, killed, missing, and on every available
Postgres."""
