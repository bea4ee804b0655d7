"""Several callers or brokers at once: races, processes, properties, and the model of a lease."""
