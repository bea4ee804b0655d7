"""Workers: which workers have been seen, and what operators want them to do.

The list is for operators and for their directives. It never decides whether a worker still has a
lease: that is the task of the lease token.
"""
