"""Behaviour of the HTTP API on one broker, a folder for each package of `app`."""
