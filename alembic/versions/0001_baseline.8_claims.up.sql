-- ready -> running
--
-- Claims up to max_jobs ready jobs of one lane: highest priority first, oldest first within a
-- priority; in a fair queue (in_admission_order) in the order of admission. A function, because a
-- later command must see what an earlier one has locked and changed. A cluster can run it on the
-- node of its first argument, the lane. docs/architecture/claim-path.md explains the steps.
--
-- Pollers can share a claim (db/batcher.py): each gets a slice of the jobs. slice_starts has the
-- position of the first job of the second, third, … slice. claims, slice_workers and
-- slice_lease_seconds have one element for each slice. Jobs that do not fit into the response of
-- their slice (max_bytes) stay ready.
--
--  * The claim counts the attempt, because a failure may never be reported: a job whose workers
--    crash silently must not be retried forever.
--  * A lease token is the claim of its slice, and half a hash of the secret and the job id. It is as
--    random as the secret, and the broker sends one secret instead of one token per row.
--  * to_timestamp() and not `timestamptz + interval`, and no bare array subscript in SET: Citus
--    rejects the first if the interval depends on a column, and crashes at the second.
--  * In held groups (held_groups) only admitted jobs are claimed. A job without an admission may be
--    ready for a moment, if a process inserted it that did not know the limit yet.
--  * Durations are returned as seconds, because the driver decodes a timestamp in 1 µs and a number
--    in 0.05 µs.
--  * waited_seconds is the time since run_at. It is NULL after a crash, because the job ran in
--    between. It is too long after a release, a return or a reconcile: they keep run_at, so the
--    earlier run counts as waiting. The time at which a job last became claimable is not stored.
--  * plan_cache_mode: with the parameters known, small claims seem cheaper, and Postgres would plan
--    five statements anew for each claim of one job (690 µs instead of 340). Citus needs plans with
--    the lane: a cluster resets it.
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
    updated bigint;
    has_lost boolean := false;
    bytes_left bigint := max_bytes;
    checked_ids uuid[] := '{}';
    checked_slices int[] := '{}';
    checked_lengths int[] := '{}';
    tidied bigint;
BEGIN
    LOOP
        ids := '{}';
        sizes := '{}';
        lease_lengths := '{}';
        missing := max_jobs - claimed;
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
                LIMIT missing
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
            must_measure := must_measure OR coalesce(has_priorities OR picked_bytes > bytes_left, false);
            IF picked < missing THEN
                visited := NULL;  -- all
                EXIT;
            END IF;
            EXIT WHEN visited = 1;
            SELECT max_jobs - claimed - count(DISTINCT job.id) INTO missing FROM unnest(ids) AS job (id);
            must_measure := must_measure OR cardinality(ids) > max_jobs - claimed - missing;
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
                WHERE measured.bytes_so_far <= bytes_left
                    OR (allow_one_oversized AND claimed = 0 AND measured.bytes_so_far = measured.size)
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
        GET DIAGNOSTICS updated = ROW_COUNT;
        claimed := claimed + updated;
        checked_ids := checked_ids || ids;
        checked_slices := checked_slices || slices;
        checked_lengths := checked_lengths || lease_lengths;
        EXIT WHEN updated = cardinality(ids) OR (must_measure AND updated > 0);
        bytes_left := bytes_left - (SELECT sum(job.size) FROM unnest(sizes) AS job (size));
        has_lost := true;
    END LOOP;

    IF in_admission_order THEN
        SELECT array_agg(span.first_id)
        INTO first_ids
        FROM (
            SELECT first_id
            FROM ready_spans
            WHERE lane = claim_lane AND priority = ANY(priorities) AND first_id = ANY(checked_ids)
            FOR UPDATE SKIP LOCKED
        ) AS span;
    ELSIF (has_lost OR visited IS NULL OR visited IS DISTINCT FROM cardinality(first_ids))
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
            LIMIT CASE WHEN has_lost OR NOT locks_spans THEN least(visited, 100) ELSE visited END
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
        FROM unnest(checked_ids, checked_slices, checked_lengths) AS job (id, slice, lease_length)
        GROUP BY job.slice;
        INSERT INTO stat_deltas (lane, ready, running) VALUES (claim_lane, -claimed, claimed);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION claim_jobs FROM PUBLIC;
