"""Migrations: up, down, side by side, behind a reader, killed half way, missing, and on every Postgres at hand."""
