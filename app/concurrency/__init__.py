"""Concurrency: how many jobs may run, how fast, and in which order.

- `queue_limits`     `max_running` and `rate` of a queue: every claim acquires an allowance under
                     the lane lock.
- `group_scheduler`  `max_running_per_group`, `fair` and cool-downs: which pending jobs of a group
                     are admitted next.
- `lane_admissions`  the statements of the scheduler's transaction under the lane lock.
- `fairness`         the pure decisions of the scheduler: what is done with a group, its circuit
                     breaker, passes of a fair queue.
- `rule_changes`     applies a changed rule to the jobs that already wait or run.
- `store`            runs concurrency.sql.

A limited queue is checked when jobs are claimed, a limited group before its jobs become claimable:
a claim that had to skip the jobs of full groups would read a whole backlog to find one job. Such
jobs are therefore inserted as pending (shown to callers as `ready`) and admitted off the request
path. Queues without limits run none of this.
"""
