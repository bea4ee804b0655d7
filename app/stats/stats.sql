-- Counts, rates and durations of jobs. Every statement that moves jobs to another state inserts one
-- row with its changes of the counts, a delta. `aggregate` adds the deltas to totals. A reader adds
-- totals and deltas in one snapshot, so counts are exact at any moment. Reading costs the same for
-- ten jobs and for ten million.

-- fragment: states
-- One column for each state of a job: the number of jobs in the state, or the change of the number.
scheduled, blocked, ready, running, completed, cancelled, dead

-- name: unaggregated_lanes
SELECT DISTINCT lane
FROM stat_deltas;

-- name: aggregate
-- Adds the deltas of one lane to its totals and rates, and deletes the deltas. If two processes do
-- this at the same time, only one of them deletes a delta, and only that process adds the delta.
WITH deleted AS (
    DELETE FROM stat_deltas
    WHERE lane = :lane
    RETURNING at, {{states}}, enqueued, failed
),
summed AS (
    INSERT INTO stat_totals AS totals (lane, {{states}})
    SELECT :lane, sum(scheduled), sum(blocked), sum(ready), sum(running), sum(completed), sum(cancelled), sum(dead)
    FROM deleted
    HAVING count(*) > 0
    ON CONFLICT (lane) DO UPDATE
    SET scheduled = totals.scheduled + excluded.scheduled,
        blocked = totals.blocked + excluded.blocked,
        ready = totals.ready + excluded.ready,
        running = totals.running + excluded.running,
        completed = totals.completed + excluded.completed,
        cancelled = totals.cancelled + excluded.cancelled,
        dead = totals.dead + excluded.dead
)
INSERT INTO stat_rates AS rates (lane, bucket_start, enqueued, completed, failed, dead)
SELECT :lane, date_bin('10 seconds', at, '2000-01-01'),
    sum(enqueued), sum(greatest(completed, 0)), sum(failed), sum(greatest(dead, 0))
FROM deleted
GROUP BY date_bin('10 seconds', at, '2000-01-01')
ON CONFLICT (lane, bucket_start) DO UPDATE
SET enqueued = rates.enqueued + excluded.enqueued,
    completed = rates.completed + excluded.completed,
    failed = rates.failed + excluded.failed,
    dead = rates.dead + excluded.dead;

-- name: add_durations
-- Adds durations to the histograms of the current minute.
INSERT INTO stat_durations AS durations (lane, minute, kind, bucket, count)
SELECT input.lane, date_trunc('minute', :now::timestamptz), input.kind, input.bucket, input.count
FROM unnest(:lanes::int[], :kinds::text[], :buckets::smallint[], :counts::bigint[]) AS input (lane, kind, bucket, count)
ORDER BY input.lane, input.kind, input.bucket
ON CONFLICT (lane, minute, kind, bucket) DO UPDATE
SET count = durations.count + excluded.count;

-- name: counts
-- row: CountRow
-- Returns the counts of all lanes together: adds the totals, and the deltas that are not aggregated
-- yet, in one snapshot.
SELECT
    coalesce(sum(scheduled), 0)::bigint AS scheduled,
    coalesce(sum(blocked), 0)::bigint AS blocked,
    coalesce(sum(ready), 0)::bigint AS ready,
    coalesce(sum(running), 0)::bigint AS running,
    coalesce(sum(completed), 0)::bigint AS completed,
    coalesce(sum(cancelled), 0)::bigint AS cancelled,
    coalesce(sum(dead), 0)::bigint AS dead
FROM (
    SELECT {{states}}
    FROM stat_totals
    WHERE lane = ANY(:lanes::int[])
    UNION ALL
    SELECT {{states}}
    FROM stat_deltas
    WHERE lane = ANY(:lanes::int[])
) AS parts;

-- name: rates
-- row: RateRow
-- Counts the events of the last 1, 5 and 60 minutes. Adds buckets of ten seconds, and the deltas
-- that are not aggregated yet.
SELECT
    (sum(enqueued) FILTER (WHERE bucket_start > :since_1))::bigint AS enqueued_1,
    (sum(completed) FILTER (WHERE bucket_start > :since_1))::bigint AS completed_1,
    (sum(failed) FILTER (WHERE bucket_start > :since_1))::bigint AS failed_1,
    (sum(dead) FILTER (WHERE bucket_start > :since_1))::bigint AS dead_1,
    (sum(enqueued) FILTER (WHERE bucket_start > :since_5))::bigint AS enqueued_5,
    (sum(completed) FILTER (WHERE bucket_start > :since_5))::bigint AS completed_5,
    (sum(failed) FILTER (WHERE bucket_start > :since_5))::bigint AS failed_5,
    (sum(dead) FILTER (WHERE bucket_start > :since_5))::bigint AS dead_5,
    (sum(enqueued) FILTER (WHERE bucket_start > :since_60))::bigint AS enqueued_60,
    (sum(completed) FILTER (WHERE bucket_start > :since_60))::bigint AS completed_60,
    (sum(failed) FILTER (WHERE bucket_start > :since_60))::bigint AS failed_60,
    (sum(dead) FILTER (WHERE bucket_start > :since_60))::bigint AS dead_60
FROM (
    SELECT bucket_start, enqueued, completed, failed, dead
    FROM stat_rates
    WHERE lane = ANY(:lanes::int[]) AND bucket_start > :since_60
    UNION ALL
    SELECT at, enqueued, greatest(completed, 0), failed, greatest(dead, 0)
    FROM stat_deltas
    WHERE lane = ANY(:lanes::int[])
) AS parts;

-- name: durations
-- row: DurationRow
-- Returns the histograms of wait and run times, of all lanes together.
SELECT kind, bucket, sum(count)::bigint AS total
FROM stat_durations
WHERE lane = ANY(:lanes::int[]) AND minute > :since
GROUP BY kind, bucket
ORDER BY kind, bucket;

-- fragment: first_job_of_spans
-- The end of a SELECT: the first ready job of the first of these ready spans that has one. Reads at
-- most a thousand spans, because very many may be left over from cancelled jobs.
    ORDER BY priority DESC, first_id
    LIMIT 1000
) AS span
CROSS JOIN LATERAL (
    SELECT run_at
    FROM jobs
    WHERE jobs.lane = span.lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready'
        AND jobs.priority = span.priority
    ORDER BY id
    LIMIT 1
) AS job
LIMIT 1

-- name: oldest_ready
-- Estimates the run_at of the ready job that has waited longest: returns the smallest run_at among
-- the first jobs of the first hundred priorities. Hops from priority to priority in the index of
-- ready spans, and finds these jobs with a few probes, however long the queue is. The first job of a
-- priority was created before the others. It has also waited longest, unless it became due long
-- after its creation.
WITH RECURSIVE first_jobs AS (
    SELECT input.lane, next_job.priority, next_job.run_at, 1 AS hop
    FROM unnest(:lanes::int[]) AS input (lane)
    CROSS JOIN LATERAL (
        SELECT span.priority, job.run_at
        FROM (
            SELECT lane, priority, first_id, last_id
            FROM ready_spans
            WHERE ready_spans.lane = input.lane
            {{first_job_of_spans}}
    ) AS next_job
    UNION ALL
    SELECT first_jobs.lane, next_job.priority, next_job.run_at, first_jobs.hop + 1
    FROM first_jobs
    CROSS JOIN LATERAL (
        SELECT span.priority, job.run_at
        FROM (
            SELECT lane, priority, first_id, last_id
            FROM ready_spans
            WHERE ready_spans.lane = first_jobs.lane AND priority < first_jobs.priority
            {{first_job_of_spans}}
    ) AS next_job
    WHERE first_jobs.hop < 100
)
SELECT min(run_at)
FROM first_jobs;

-- name: oldest_pending
-- Like oldest_ready, for pending jobs: returns the smallest run_at among the first jobs of the
-- first hundred groups. A loose index scan of jobs_pending finds these jobs.
WITH RECURSIVE first_jobs AS (
    SELECT input.lane, next_job.group_key, next_job.run_at, 1 AS hop
    FROM unnest(:lanes::int[]) AS input (lane)
    CROSS JOIN LATERAL (
        SELECT pending_group AS group_key, run_at
        FROM jobs
        WHERE jobs.lane = input.lane AND pending_group IS NOT NULL
        ORDER BY pending_group, id
        LIMIT 1
    ) AS next_job
    UNION ALL
    SELECT first_jobs.lane, next_job.group_key, next_job.run_at, first_jobs.hop + 1
    FROM first_jobs
    CROSS JOIN LATERAL (
        SELECT pending_group AS group_key, run_at
        FROM jobs
        WHERE jobs.lane = first_jobs.lane AND pending_group > first_jobs.group_key
        ORDER BY pending_group, id
        LIMIT 1
    ) AS next_job
    WHERE first_jobs.hop < 100
)
SELECT min(run_at)
FROM first_jobs;

-- name: workers_seen
SELECT count(*)
FROM workers
WHERE last_seen_at > :since;

-- name: delete_rates
DELETE FROM stat_rates
WHERE bucket_start < :before;

-- name: delete_durations
DELETE FROM stat_durations
WHERE minute < :before;
