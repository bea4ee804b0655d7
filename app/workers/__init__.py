"""Workers: the list of workers that were seen lately, and the directives that operators set.

The list never decides whether a worker still has a lease: the lease token decides.
"""
