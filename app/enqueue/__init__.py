"""Enqueue: from a request to rows in `jobs`: defaults, keys, dependencies, `max_waiting`."""
