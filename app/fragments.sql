-- Pieces of SQL that statements of several packages contain as {{name}}.

-- fragment: is_held
-- Whether the group of a row of `jobs` needs an admission. :held_groups are the groups: `*` stands
-- for every group, the empty text for jobs without a group, NULL for no group at all.
(coalesce(jobs.group_key, '') = ANY(:held_groups::text[]) OR (jobs.group_key IS NOT NULL AND '*' = ANY(:held_groups::text[])))

-- fragment: moved_job
-- The columns of MovedJobRow, of a row that has reached a new state.
id, state, job_type, group_key, run_at, has_dependents, admission

-- fragment: jobs_moved_job
-- The same, where `jobs` is joined.
jobs.id, jobs.state, jobs.job_type, jobs.group_key, jobs.run_at, jobs.has_dependents, jobs.admission

-- fragment: row_is_held
-- The same as is_held, where the row is one of a CTE and not of `jobs`.
(coalesce(group_key, '') = ANY(:held_groups::text[]) OR (group_key IS NOT NULL AND '*' = ANY(:held_groups::text[])))

-- fragment: ready_and_scheduled_counts
-- The columns ready and scheduled of a row of stat_deltas. A pending job counts as ready.
count(*) FILTER (WHERE state IN ('ready', 'pending')), count(*) FILTER (WHERE state = 'scheduled')
