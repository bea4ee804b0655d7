"""Dependencies: which job waits for which. Stored by an enqueue, read when a parent finishes."""
