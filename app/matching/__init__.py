"""Matching: the polls that wait for jobs, who wakes them, and which new jobs suit them."""
