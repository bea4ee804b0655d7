"""The invariants of ready spans and lease checks, for all tests that end with jobs in the database."""

# A lease check may be due later than its lease ends: up to 60 seconds after the claim, or a second after
# the lease rescuer could not end the lease.
UNCOVERED_JOBS = """
SELECT 'ready job without a ready span: ' || id AS fault
FROM jobs
WHERE state = 'ready' AND NOT EXISTS (
    SELECT
    FROM ready_spans
    WHERE ready_spans.lane = jobs.lane AND ready_spans.priority = jobs.priority AND first_id <= id AND last_id >= id
)
UNION ALL
SELECT 'running job without a lease check: ' || id
FROM jobs
WHERE state = 'running' AND NOT EXISTS (
    SELECT
    FROM lease_checks
    WHERE lease_checks.lane = jobs.lane AND jobs.id = ANY(job_ids)
        AND check_at <= greatest(lease_expires_at, started_at + interval '60 seconds', now() + interval '2 seconds')
)
"""
