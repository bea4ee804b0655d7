"""Statistics and health of queues.

Every transition of a job records how it changes the counts, so no request counts jobs.
"""
