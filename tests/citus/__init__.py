"""Tests on a Citus cluster. They run if CITUS_DSN is set."""
