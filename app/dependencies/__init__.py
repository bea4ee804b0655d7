"""Dependencies: which job waits for which. Written by enqueues, read when a parent finishes."""
