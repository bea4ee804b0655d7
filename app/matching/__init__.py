"""Matching: the long polls that wait for jobs, and the registry that wakes them."""
