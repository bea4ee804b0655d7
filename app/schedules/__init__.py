"""Schedules: jobs that come again and again, by cron or every so many seconds."""
