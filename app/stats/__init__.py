"""Statistics and health of queues, read from totals that every transition maintains; jobs are never
counted.
"""
