-- The audit log: triggers record every change of a job in the chaos database, in the same transaction.
-- So a record is exactly as durable as the change itself.
-- - `n` is the order of all changes of one job: the next transaction that touches its row waits for
--   the commit of the one before.
-- - `at` is the machine's clock, which the clients share. `transaction_at` is its time when the
--   transaction began: before that it cannot have locked a row.
-- - `snapshot` says which transactions the statement saw. It is recorded when a job becomes ready or running.
-- - A jump of the database's clock is a row of its own, with source 'clock'.
CREATE TABLE audit_log (
    n bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    transaction_at timestamptz NOT NULL DEFAULT pg_catalog.transaction_timestamp(),
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    snapshot text,
    source text NOT NULL,
    op text NOT NULL,
    lane int,
    id uuid,
    old_state text,
    state text,
    reason text,
    token uuid,
    deliveries int,
    attempt int,
    max_attempts int,
    crashes int,
    settled_as text,
    group_key text,
    unique_key text,
    key text,
    replayed_from uuid,
    priority int,
    run_at timestamptz,
    started_at timestamptz,
    lease_expires_at timestamptz,
    deadline_at timestamptz,
    expires_at timestamptz,
    cancel_requested_at timestamptz,
    by interval
);

-- A STABLE function uses the snapshot of the statement that fires the trigger; others take a new one.
CREATE FUNCTION audit_snapshot() RETURNS trigger
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    PERFORM pg_catalog.set_config('audit.snapshot', pg_catalog.pg_current_snapshot()::text, true);
    RETURN NULL;
END
$$;

CREATE TRIGGER audit_snapshot BEFORE INSERT OR UPDATE ON jobs FOR EACH STATEMENT EXECUTE FUNCTION audit_snapshot();

CREATE FUNCTION audit_job() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    job jobs := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO public.audit_log (
        snapshot, source, op, lane, id, old_state, state, reason, token, deliveries, attempt, max_attempts, crashes, settled_as, group_key,
        unique_key, key, replayed_from, priority, run_at, started_at, lease_expires_at, deadline_at, expires_at, cancel_requested_at
    )
    VALUES (
        CASE WHEN TG_OP <> 'DELETE' AND job.state IN ('ready', 'running') THEN current_setting('audit.snapshot') END,
        'jobs', TG_OP, job.lane, job.id, CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END, job.state, job.state_reason, job.lease_token,
        job.deliveries, job.attempt, job.max_attempts, job.crashes, job.settled_as, job.group_key, job.unique_key,
        CASE WHEN TG_OP = 'INSERT' THEN job.payload::jsonb ->> 'key' END, job.replayed_from, job.priority, job.run_at, job.started_at,
        job.lease_expires_at, job.deadline_at, job.expires_at, job.cancel_requested_at
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER audit_insert_delete AFTER INSERT OR DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION audit_job();
CREATE TRIGGER audit_update AFTER UPDATE ON jobs FOR EACH ROW
WHEN (
    (OLD.state, OLD.lease_token, OLD.lease_expires_at, OLD.deliveries, OLD.attempt, OLD.max_attempts, OLD.crashes, OLD.settled_as,
        OLD.run_at, OLD.expires_at, OLD.cancel_requested_at)
    IS DISTINCT FROM
    (NEW.state, NEW.lease_token, NEW.lease_expires_at, NEW.deliveries, NEW.attempt, NEW.max_attempts, NEW.crashes, NEW.settled_as,
        NEW.run_at, NEW.expires_at, NEW.cancel_requested_at)
)
EXECUTE FUNCTION audit_job();

-- Statement triggers: creating and dropping partitions moves rows between them, which is no change of a job.
CREATE FUNCTION audit_finished() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO public.audit_log (
        source, op, lane, id, state, reason, token, deliveries, attempt, max_attempts, crashes, settled_as, group_key, run_at, cancel_requested_at
    )
    SELECT 'finished_jobs', TG_OP, lane, id, state, state_reason, lease_token, deliveries, attempt, max_attempts, crashes, settled_as,
        group_key, run_at, cancel_requested_at
    FROM changed;
    RETURN NULL;
END
$$;

CREATE TRIGGER audit_finished AFTER INSERT ON finished_jobs REFERENCING NEW TABLE AS changed
FOR EACH STATEMENT EXECUTE FUNCTION audit_finished();
CREATE TRIGGER audit_finished_removed AFTER DELETE ON finished_jobs REFERENCING OLD TABLE AS changed
FOR EACH STATEMENT EXECUTE FUNCTION audit_finished();

CREATE FUNCTION audit_dead() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO public.audit_log (
        source, op, lane, id, state, reason, token, deliveries, attempt, max_attempts, crashes, settled_as, group_key, run_at
    )
    SELECT 'dead_letters', TG_OP, lane, id, 'dead', changed.reason, lease_token, deliveries, attempt, max_attempts, crashes, settled_as,
        group_key, run_at
    FROM changed;
    RETURN NULL;
END
$$;

CREATE TRIGGER audit_dead_letter AFTER INSERT ON dead_letters REFERENCING NEW TABLE AS changed
FOR EACH STATEMENT EXECUTE FUNCTION audit_dead();
CREATE TRIGGER audit_dead_letter_removed AFTER DELETE ON dead_letters REFERENCING OLD TABLE AS changed
FOR EACH STATEMENT EXECUTE FUNCTION audit_dead();

CREATE FUNCTION audit_clock() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO public.audit_log (source, op, by) SELECT 'clock', TG_OP, clock_jump.by FROM public.clock_jump;
    RETURN NULL;
END
$$;

CREATE TRIGGER audit_clock AFTER UPDATE ON clock_jump FOR EACH ROW EXECUTE FUNCTION audit_clock();
