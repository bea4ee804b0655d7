"""Workers: which workers have been seen, and what operators want them to do.

The list is for people and signals, never for fencing: that is the lease token's task.
"""
