"""Explain: why a job is not running. Reads what the other rooms decide by; decides nothing."""
