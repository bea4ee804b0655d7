"""Job types: what holds for every job of a type, and what its payload must look like. Small, cached in every process."""
