"""Tests of the SQL on plain Postgres: system catalogue, statement text, row types, query plans, and
lanes as partitions."""
