"""Postgres: connections, transactions, statements, clocks and migrations. Knows no job."""
