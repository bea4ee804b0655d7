"""Change: migrators that are killed, the release before beside this one, rolling restarts, the role that serves, a sealed file system."""
