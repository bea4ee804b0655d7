"""Jobs: what producers send and look at. Owns the states before a lease: scheduled, blocked, ready."""
