"""Dependencies between jobs: a job, the child, waits until other jobs, its parents, have finished.

An enqueue stores dependencies. The dependency resolver reads them when a parent has finished.
"""
