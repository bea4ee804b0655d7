"""Job types: defaults for the jobs of a type, and the JSON Schema of their payloads.

There are few job types. Every process caches all of them.
"""
