"""Matching: pollers that wait for jobs, and new jobs that go straight to a waiting poller."""
