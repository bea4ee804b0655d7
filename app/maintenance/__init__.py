"""Maintenance: what happens with no request. chores.py says what, runner.py says when."""
