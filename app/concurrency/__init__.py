"""Concurrency: how many jobs may run, how fast, and in which order.

- `queue_limits`     enforces `max_running` and `rate` of a queue: computes under the lane lock how
                     many jobs a claim may deliver.
- `group_scheduler`  enforces `max_running_per_group`, `fair` and cool-downs: decides which pending
                     jobs of a group are admitted next.
- `lane_admissions`  runs the statements of the scheduler's transaction under the lane lock.
- `fairness`         makes the scheduler's decisions, as pure functions: how many jobs of a group
                     are admitted, when its circuit breaker closes, and the passes of a fair queue.
- `rule_changes`     applies a changed rule to the jobs that already wait or run.
- `store`            runs the statements of concurrency.sql.

The limits of a queue are checked when jobs are claimed. The limits of a group are checked before
its jobs become claimable, because a claim that had to skip the jobs of full groups would read a
whole backlog to find one job. Jobs of limited groups are therefore inserted as pending (shown to
callers as `ready`) and admitted off the request path. A queue that has no limits, is not fair and
has no cooling group needs no part of this package.
"""
