"""Keys and gates: the rows that are locked before any job is. Idempotency keys, unique keys, claim keys, and a gate per lane."""
