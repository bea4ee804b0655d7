"""The HTTP server, over raw sockets.

Tests of rejected and accepted requests, and of the effect of slow or greedy clients on others.
"""
