"""Dead letters: jobs that will not run again by themselves. Owns the state dead."""
