"""Longshore: a job broker with a REST API on Postgres.

The packages, roughly in the order in which a job passes through them:

- `cli`           starts the broker, migrates the schema, manages API keys, makes backups
- `application`   builds the FastAPI application: routers, fast routes, lifespan
- `broker`        builds every service and connects them; starts the background services
- `server`        the HTTP server on uvicorn: connections, limits and timeouts; no routes
- `http`          shared HTTP code: authentication, bodies, problems, pages, OpenAPI
- `api_keys`      API keys, their scopes and their quotas
- `queues`        queues and their configuration
- `job_types`     job types and the JSON Schemas of their payloads
- `enqueue`       from a request to rows in `jobs`: parsing, defaults, unique keys, dependencies
- `locks`         rows that transactions lock before jobs: idempotency keys, unique keys, lane locks
- `dependencies`  jobs that wait for other jobs
- `schedules`     jobs that are enqueued by a cron expression or a fixed interval
- `matching`      waiting pollers, and sync match: stores new jobs as already leased to a poller
- `concurrency`   max_running, rate limits, groups, fairness and cool-downs
- `leases`        the leases of workers: claim, heartbeat, settle
- `workers`       connected workers, their directives and the queues they poll
- `jobs`          stored jobs: read, list, change, cancel, purge
- `dead_letters`  jobs that will not be retried, and their replay
- `explain`       the reasons why a job is not running
- `stats`         counts, rates, latencies and health of queues
- `maintenance`   services that run without a request: lease expiry, retention, due jobs
- `db`            Postgres: pool, named statements, batching, migrations; no rules about jobs

All packages use `events`, `periodic_service`, `settings`, `errors`, `log`, `metrics`, `slices` and
`rng`.
"""

RELEASE = "0.1.0"
