-- Reads jobs by id: live, finished and dead ones.

-- fragment: stored_job
-- The columns of JobRow that jobs, finished_jobs and dead_letters all have.
lane, id, job_type, payload, priority, attempt, max_attempts, crashes, deliveries, run_at, started_at, worker_id,
progress, checkpoint, attempts, group_key, tags, metadata, replayed_from, replay_count, unique_key, schedule, depends_on

-- name: live_jobs
-- row: JobRow
SELECT {{stored_job}}, state, state_reason, NULL::timestamptz AS finished_at, lease_expires_at, NULL::text AS result,
    cancel_requested_at
FROM jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]);

-- name: live_ids
SELECT id
FROM jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]);

-- name: dead_ids
SELECT id
FROM dead_letters
WHERE lane = :lane AND id = ANY(:ids::uuid[]);

-- name: finished_jobs
-- row: JobRow
-- Leaves out jobs whose retention has ended, even if their partition is not dropped yet.
SELECT {{stored_job}}, state, state_reason, finished_at, NULL::timestamptz AS lease_expires_at, result,
    cancel_requested_at
FROM finished_jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]) AND keep_until > :retention_now;

-- name: dead_jobs
-- row: JobRow
SELECT {{stored_job}}, 'dead' AS state, reason AS state_reason, dead_at AS finished_at,
    NULL::timestamptz AS lease_expires_at, NULL::text AS result, NULL::timestamptz AS cancel_requested_at
FROM dead_letters
WHERE lane = :lane AND id = ANY(:ids::uuid[]);
