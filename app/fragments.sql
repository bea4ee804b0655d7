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
