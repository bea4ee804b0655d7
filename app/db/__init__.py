"""Postgres: connections, transactions, statements, clocks and migrations.

Contains no rules about jobs.
"""
