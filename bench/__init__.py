"""Measures; asserts nothing on time."""
