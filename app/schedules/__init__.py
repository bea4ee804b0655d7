"""Schedules: jobs that are enqueued periodically, by cron or at a fixed interval."""
