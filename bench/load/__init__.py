"""The load: a process of its own, so that it shares no event loop with anything and its CPU can be told."""
