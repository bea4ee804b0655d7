-- ready -> running
--
-- Claims up to max_jobs ready jobs of one lane: highest priority first, oldest first within a
-- priority. In a fair queue (in_admission_order): in the order of admission.
--
-- A function and not a statement, because a later command must see what an earlier one has locked
-- and changed, and because a cluster runs it where the lane is, in one round trip: it has the lane
-- as its first argument, and no INSERT in a CTE.
--
-- Pollers can share a claim (db/batcher.py). Each gets a slice of the jobs: slice_starts has the
-- position of the first job of the second, third, … slice. claims, slice_workers and
-- slice_lease_seconds have one element for each slice. Jobs that do not fit into the response of
-- their slice (max_bytes) stay ready.
--
--  1. Picks jobs: reads the ready spans in order, and of each span the ready jobs in the order of
--     their ids. The lock on the span keeps rivals away, so that the jobs need no lock of their own:
--     it would write 61 bytes of WAL each. Jobs are locked where that does not hold: in a span that
--     a rival has locked; and where xmax shows that another transaction may have locked the job
--     (PATCH, cancel), so that one locked job never holds up a lane. Claims of some job types, and
--     of lanes with held groups, lock no spans, because they leave jobs behind for rivals.
--  2. Measures: assigns the jobs to slices, and drops those that do not fit.
--  3. Updates the jobs. A rival may have taken some of them in the meantime. If it took all, the
--     claim begins again.
--  4. Tidies the spans that it has read (tidy_spans).
--  5. Inserts one lease check for each slice, and the delta of the statistics.
--
-- Details:
--
--  * Overlapping spans yield a job twice; then the claim picks again for the rest.
--  * The attempt is counted at the claim and not at the failure: a worker that crashes silently
--    must not retry forever.
--  * A lease token is the claim of its slice, and half a hash of the secret and the job id. It is as
--    random as the secret, and the broker need not send one token per row.
--  * Times that depend on a column go through to_timestamp(), which is immutable, and no SET has a
--    bare array subscript: Citus rejects `timestamptz + interval` there, and crashes at a subscript.
--  * The UPDATE finds its rows by an id array, in the order of the ids: that is the lock order.
--  * In groups that need admission (held_groups) only admitted jobs are claimed. Other jobs may be
--    ready for a moment, inserted by a process that did not know the limit yet.
--  * The bounds of the scan ranges come from `unnest` and not from parameters, so the planner cannot
--    see their values, and keeps the generic plan.
--  * Durations are returned in seconds: the driver takes 1 µs for a timestamp, 0.05 for a number.
--  * waited_seconds is the time since run_at. It is NULL after a crash, because the job ran in
--    between. It is too long after a release, a return and a reconcile: these keep run_at, so the
--    earlier run counts as waiting. The time at which a job last became claimable is not stored.
CREATE FUNCTION claim_jobs(
    claim_lane int,
    max_jobs int,
    in_admission_order boolean,
    highest smallint[],
    lowest smallint[],
    after uuid[],
    until uuid[],
    allowed_types text[],
    held_groups text[],
    claimed_at timestamptz,
    claimed_epoch float8,
    secret text,
    claims text[],
    slice_workers text[],
    slice_lease_seconds int[],
    default_lease_seconds int,
    slice_starts bigint[],
    envelope_bytes int,
    max_bytes bigint,
    allow_one_oversized boolean,
    takes_slot boolean,
    owner text
) RETURNS TABLE (
    id uuid,
    job_type text,
    payload text,
    attempt smallint,
    max_attempts smallint,
    deliveries int,
    lease_token uuid,
    lease_seconds float8,
    waited_seconds float8,
    priority smallint,
    checkpoint text,
    progress text,
    group_key text,
    tags text,
    metadata text,
    traceparent text,
    tracestate text,
    deadline_at timestamptz,
    depends_on uuid[],
    admission bigint,
    slice_number int,
    size int
)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_memoize = off
AS $$
#variable_conflict use_column
DECLARE
    -- Claims that leave jobs behind for rivals lock jobs instead of spans.
    locks_spans CONSTANT boolean := allowed_types IS NULL AND held_groups IS NULL AND NOT in_admission_order;
    must_measure boolean := cardinality(claims) > 1 OR cardinality(highest) > 1 OR in_admission_order;
    ids uuid[];
    sizes int[];
    lease_lengths int[];
    slices int[];
    missing bigint;
    picked bigint;
    picked_bytes bigint;
    has_priorities boolean;
    visited bigint;
    priorities smallint[];
    first_ids uuid[];
    claimed bigint := 0;
    tidied bigint;
BEGIN
    WHILE claimed = 0 LOOP
        ids := '{}';
        sizes := '{}';
        lease_lengths := '{}';
        missing := max_jobs;
        IF in_admission_order THEN
            SELECT coalesce(array_agg(job.id), '{}'), array_agg(job.size), array_agg(job.lease_length),
                array_agg(DISTINCT job.priority)
            INTO ids, sizes, lease_lengths, priorities
            FROM (
                SELECT id, priority,
                    least(coalesce(lease_seconds, default_lease_seconds), timeout_seconds) AS lease_length,
                    envelope_bytes + octet_length(payload)
                        + coalesce(octet_length(checkpoint), 0) + coalesce(octet_length(progress), 0)
                        + coalesce(octet_length(tags), 0) + coalesce(octet_length(metadata), 0) AS size
                FROM jobs
                WHERE lane = claim_lane AND ready_admission IS NOT NULL
                    AND (allowed_types IS NULL OR job_type = ANY(allowed_types))
                    AND (expires_at IS NULL OR expires_at > claimed_at)
                ORDER BY priority DESC, ready_admission, id
                LIMIT max_jobs
                FOR UPDATE SKIP LOCKED
            ) AS job;
            missing := 0;
        END IF;
        WHILE missing > 0 LOOP
            SELECT ids || array_agg(job.id), sizes || array_agg(job.size), lease_lengths || array_agg(job.lease_length),
                count(*), sum(job.size), max(job.priority) > min(job.priority), max(job.span_number),
                array_agg(job.priority) FILTER (WHERE job.begins_span),
                array_agg(job.first_id) FILTER (WHERE job.begins_span)
            INTO ids, sizes, lease_lengths, picked, picked_bytes, has_priorities, visited,
                priorities, first_ids
            FROM (
                SELECT job.id, job.size, job.lease_length, span.span_number, span.priority, span.first_id,
                    locked_span.is_mine AND job.id = span.first_id AS begins_span
                FROM (
                    SELECT ordered.place, ordered.priority, ordered.first_id, ordered.last_id,
                        row_number() OVER () AS span_number
                    FROM unnest(highest, lowest, after, until) AS scan_range (highest, lowest, after, until)
                    CROSS JOIN LATERAL (
                        SELECT ctid AS place, priority, first_id, last_id
                        FROM ready_spans
                        WHERE lane = claim_lane
                            AND priority <= scan_range.highest AND priority >= scan_range.lowest
                            AND first_id > scan_range.after AND first_id <= scan_range.until
                        ORDER BY priority DESC, first_id
                    ) AS ordered
                ) AS span
                LEFT JOIN LATERAL (
                    SELECT true AS is_mine
                    FROM ready_spans
                    WHERE locks_spans AND lane = claim_lane AND ctid = span.place
                    FOR UPDATE SKIP LOCKED
                ) AS locked_span ON true
                CROSS JOIN LATERAL (
                    SELECT id, ctid AS place, xmax <> '0' AS may_be_locked,
                        least(coalesce(lease_seconds, default_lease_seconds), timeout_seconds) AS lease_length,
                        envelope_bytes + octet_length(payload)
                            + coalesce(octet_length(checkpoint), 0) + coalesce(octet_length(progress), 0)
                            + coalesce(octet_length(tags), 0) + coalesce(octet_length(metadata), 0) AS size
                    FROM jobs
                    WHERE lane = claim_lane AND id >= span.first_id AND id <= span.last_id
                        AND state = 'ready' AND priority = span.priority AND id <> ALL(ids)
                        AND (allowed_types IS NULL OR job_type = ANY(allowed_types))
                        AND (expires_at IS NULL OR expires_at > claimed_at)
                        AND (
                            held_groups IS NULL OR admission IS NOT NULL OR NOT (
                                coalesce(group_key, '') = ANY(held_groups)
                                OR (group_key IS NOT NULL AND '*' = ANY(held_groups))
                            )
                        )
                    ORDER BY id
                ) AS job
                LEFT JOIN LATERAL (
                    SELECT true AS is_mine
                    FROM jobs
                    WHERE (job.may_be_locked OR locked_span.is_mine IS NULL)
                        AND lane = claim_lane AND ctid = job.place AND state = 'ready'
                    FOR UPDATE SKIP LOCKED
                ) AS locked_job ON true
                WHERE locked_job.is_mine OR (locked_span.is_mine AND NOT job.may_be_locked)
                LIMIT missing
            ) AS job;
            must_measure := must_measure OR coalesce(has_priorities OR picked_bytes > max_bytes, false);
            IF picked < missing THEN
                visited := NULL;  -- all
                EXIT;
            END IF;
            EXIT WHEN visited = 1;
            SELECT max_jobs - count(DISTINCT job.id) INTO missing FROM unnest(ids) AS job (id);
            must_measure := must_measure OR cardinality(ids) > max_jobs - missing;
        END LOOP;
        EXIT WHEN ids = '{}';

        IF must_measure THEN
            SELECT array_agg(job.id), array_agg(job.slice), array_agg(job.size), array_agg(job.lease_length)
            INTO ids, slices, sizes, lease_lengths
            FROM (
                SELECT measured.id, measured.slice, measured.size, measured.lease_length
                FROM (
                    SELECT assigned.id, assigned.slice, assigned.size, assigned.lease_length,
                        sum(assigned.size) OVER (
                            PARTITION BY assigned.slice ORDER BY assigned.position ROWS UNBOUNDED PRECEDING
                        ) AS bytes_so_far
                    FROM (
                        SELECT ranked.id, ranked.size, ranked.lease_length, ranked.position,
                            width_bucket(ranked.position, slice_starts) + 1 AS slice
                        FROM (
                            SELECT different.id, different.size, different.lease_length,
                                row_number() OVER (ORDER BY different.position) AS position
                            FROM (
                                SELECT DISTINCT ON (job.id) job.id, job.size, job.lease_length, job.position
                                FROM unnest(ids, sizes, lease_lengths)
                                    WITH ORDINALITY AS job (id, size, lease_length, position)
                                ORDER BY job.id, job.position
                            ) AS different
                        ) AS ranked
                    ) AS assigned
                ) AS measured
                WHERE measured.bytes_so_far <= max_bytes
                    OR (allow_one_oversized AND measured.bytes_so_far = measured.size)
                ORDER BY measured.id
            ) AS job;
            EXIT WHEN ids IS NULL;
        ELSE
            slices := array_fill(1, ARRAY[cardinality(ids)]);
        END IF;

        RETURN QUERY
        UPDATE jobs
        SET state = 'running',
            state_reason = NULL,
            settled_as = NULL,
            unreported_since = NULL,
            attempt = attempt + 1,
            deliveries = deliveries + 1,
            worker_id = coalesce(slice_workers[job.slice], NULL),
            started_at = claimed_at,
            lease_token = (coalesce(claims[job.slice], '') || right(md5(secret || jobs.id::text), 16))::uuid,
            lease_expires_at = to_timestamp(claimed_epoch
                + least(
                    coalesce(slice_lease_seconds[job.slice], lease_seconds, default_lease_seconds), timeout_seconds
                )),
            deadline_at = to_timestamp(claimed_epoch + timeout_seconds),
            uses_slot = takes_slot,
            quota_owner = owner
        FROM unnest(ids, slices, sizes) AS job (id, slice, size)
        WHERE jobs.lane = claim_lane AND jobs.id = ANY(ids) AND jobs.id = job.id
            AND state = 'ready'
        RETURNING jobs.id, job_type, payload, attempt, max_attempts, deliveries, lease_token,
            date_part('epoch', lease_expires_at - claimed_at),
            CASE WHEN crashes = 0 THEN date_part('epoch', claimed_at - greatest(run_at, 'epoch')) END,
            priority, checkpoint, progress, group_key, tags, metadata, traceparent, tracestate, deadline_at, depends_on,
            admission, job.slice, job.size;
        GET DIAGNOSTICS claimed = ROW_COUNT;
    END LOOP;

    IF in_admission_order THEN
        SELECT array_agg(span.first_id)
        INTO first_ids
        FROM (
            SELECT first_id
            FROM ready_spans
            WHERE lane = claim_lane AND priority = ANY(priorities) AND first_id = ANY(ids)
            FOR UPDATE SKIP LOCKED
        ) AS span;
    ELSIF (visited IS NULL OR visited IS DISTINCT FROM cardinality(first_ids))
        AND pg_current_xact_id_if_assigned() IS NOT NULL
    THEN
        SELECT array_agg(span.priority), array_agg(span.first_id)
        INTO priorities, first_ids
        FROM (
            SELECT ordered.place, ordered.priority, ordered.first_id, ordered.last_id
            FROM unnest(highest, lowest, after, until) AS scan_range (highest, lowest, after, until)
            CROSS JOIN LATERAL (
                SELECT ctid AS place, priority, first_id, last_id
                FROM ready_spans
                WHERE lane = claim_lane
                    AND priority <= scan_range.highest AND priority >= scan_range.lowest
                    AND first_id > scan_range.after AND first_id <= scan_range.until
                ORDER BY priority DESC, first_id
            ) AS ordered
            LIMIT CASE WHEN locks_spans THEN visited ELSE least(visited, 100) END
        ) AS span
        CROSS JOIN LATERAL (
            SELECT lane FROM ready_spans WHERE lane = claim_lane AND ctid = span.place FOR UPDATE SKIP LOCKED
        ) AS locked
        WHERE (
            SELECT id
            FROM jobs
            WHERE lane = claim_lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready'
                AND priority = span.priority
            ORDER BY id
            LIMIT 1
        ) IS DISTINCT FROM span.first_id;
    END IF;
    IF first_ids IS NOT NULL THEN
        DELETE FROM ready_spans AS span
        WHERE lane = claim_lane
            AND priority = ANY(priorities) AND first_id = ANY(first_ids) AND xmax = pg_current_xact_id()::xid
            AND (
                SELECT id
                FROM jobs
                WHERE lane = claim_lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready'
                    AND priority = span.priority
                ORDER BY id
                LIMIT 1
            ) IS NULL;
        GET DIAGNOSTICS tidied = ROW_COUNT;
        IF tidied < cardinality(first_ids) THEN
            UPDATE ready_spans AS span
            SET first_id = coalesce(
                (
                    SELECT id
                    FROM jobs
                    WHERE lane = claim_lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready'
                        AND priority = span.priority
                    ORDER BY id
                    LIMIT 1
                ),
                first_id
            )
            WHERE lane = claim_lane
                AND priority = ANY(priorities) AND first_id = ANY(first_ids) AND xmax = pg_current_xact_id()::xid;
        END IF;
    END IF;

    IF claimed > 0 THEN
        INSERT INTO lease_checks (lane, check_at, claim, worker_id, job_ids)
        SELECT claim_lane,
            to_timestamp(claimed_epoch + least(min(job.lease_length), min(slice_lease_seconds[job.slice]), 60)),
            decode(claims[job.slice], 'hex'), slice_workers[job.slice], array_agg(job.id)
        FROM unnest(ids, slices, lease_lengths) AS job (id, slice, lease_length)
        GROUP BY job.slice;
        INSERT INTO stat_deltas (lane, ready, running) VALUES (claim_lane, -claimed, claimed);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION claim_jobs FROM PUBLIC;
