"""Statistics and health of queues. Every transition records how it changes the counts, so no
request counts jobs.
"""
