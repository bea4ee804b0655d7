"""The load: a process of its own, so that it shares no event loop and its CPU can be reported."""
