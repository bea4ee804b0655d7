"""The long polls that wait for jobs, and the registry that wakes them or matches them with jobs."""
