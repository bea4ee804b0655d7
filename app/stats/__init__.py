"""Stats: how the queues are. Reads sums that are kept, never counts jobs."""
