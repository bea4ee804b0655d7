"""Longshore: a job broker with a REST API on Postgres.

The packages, in the order in which a job meets them:

- `cli`           starts the broker, migrates the schema, manages API keys, makes backups
- `application`   builds the FastAPI application: routers, fast routes, lifespan
- `broker`        builds every service and connects them; starts the background services
- `server`        the HTTP server on uvicorn: connections, limits and timeouts; knows no route
- `http`          HTTP as all packages use it: authentication, bodies, problems, pages, OpenAPI
- `api_keys`      API keys, their scopes and their quotas
- `queues`        queues and their configuration
- `job_types`     job types and the JSON Schemas of their payloads
- `enqueue`       from a request to rows in `jobs`: parsing, defaults, unique keys, dependencies
- `locks`         rows that are locked before jobs: idempotency keys, unique keys, lane locks
- `dependencies`  jobs that wait for other jobs
- `schedules`     jobs that are enqueued by a cron expression or a fixed interval
- `matching`      pollers that wait, and sync match: new jobs stored as leased to a waiting poller
- `concurrency`   max_running, rate limits, groups, fairness and cool-downs
- `leases`        a job held by a worker: claim, heartbeat, settle
- `workers`       connected workers, their directives and the queues they poll
- `jobs`          a job as it is stored: read, list, change, cancel, purge
- `dead_letters`  jobs that failed for good, and their replay
- `explain`       the reasons why a job is not running
- `stats`         counts, rates, latencies and health of queues
- `maintenance`   services that run without a request: lease expiry, retention, due jobs
- `db`            Postgres: pool, named statements, batching, migrations; knows no job
- `events`, `periodic_service`, `settings`, `errors`, `log`, `metrics`, `slices`, `rng`: used by all
"""

RELEASE = "0.1.0"
