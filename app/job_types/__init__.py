"""Job types: what the jobs of one kind have in common, and what their payloads must look like. Cached in every process."""
