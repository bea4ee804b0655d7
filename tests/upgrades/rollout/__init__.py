"""Upgrades and deployments: killed migrators, the previous release beside this one, rolling
restarts, the database role of brokers, a read-only file system."""
