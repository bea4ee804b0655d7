"""An embedded Postgres: pinned binaries, run as a child process of the broker."""
