"""Dead letters: jobs in the state dead, which run again only if they are replayed."""
