"""Benchmarks. They print figures and assert nothing about time."""
