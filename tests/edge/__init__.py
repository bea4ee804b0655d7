"""The HTTP edge, over raw sockets: what is refused and how, what is served, and what slow or greedy clients can do to others."""
