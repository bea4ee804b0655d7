"""The peers and their settings. README.md has the figures of settings that were tried."""

from bench.peers import servers
from bench.peers.contender import Contender
from bench.result import Peer

POSTGRES = "Postgres wire protocol, Unix socket"

PROCRASTINATE = Contender(
    name="procrastinate",
    protocol=POSTGRES,
    driver="drive_procrastinate.py",
    libraries=("procrastinate", "psycopg[binary]"),
    settings={
        "enqueue_single": {"callers": 64, "pool": 20},
        "enqueue_bulk": {"callers": 2, "batch": 1000, "pool": 2},
        "drain_default": {"concurrency": 1, "pool": 10},
        "drain_tuned": {"concurrency": 10, "pool": 10},
        "like_single": {"callers": 32, "pool": 20},
        "like_drain": {"concurrency": 32, "pool": 20},
    },
    rates={"drain_default": 60, "drain_tuned": 140, "like_drain": 120},
)

PGQUEUER = Contender(
    name="pgqueuer",
    protocol=POSTGRES,
    driver="drive_pgqueuer.py",
    libraries=("pgqueuer", "asyncpg"),
    settings={
        "enqueue_single": {"callers": 64, "pool": 10},
        "enqueue_bulk": {"callers": 4, "batch": 1000, "pool": 4},
        "drain_default": {"prefetch": 10, "pool": 10},
        "drain_tuned": {"prefetch": 500, "pool": 10},
        "like_single": {"callers": 32, "pool": 10},
        "like_drain": {"prefetch": 500, "pool": 10},  # a limit of 32 jobs would allow only batches of 16
    },
    rates={"drain_default": 1300, "drain_tuned": 5000, "like_drain": 5000},
)

PGMQ = Contender(
    name="pgmq, bare SQL",
    protocol=POSTGRES,
    driver="drive_pgmq.py",
    libraries=("pgmq", "asyncpg"),
    settings={
        "enqueue_single": {"callers": 64, "pool": 32},
        "enqueue_bulk": {"callers": 2, "batch": 1000, "pool": 2},
        "drain_tuned": {"concurrency": 4, "prefetch": 1000, "pool": 4},
    },
    rates={"drain_tuned": 28_000},
)

PG_BOSS = Contender(
    name="pg-boss",
    protocol=POSTGRES,
    driver="pg-boss.mjs",
    libraries=("pg-boss", "pg"),
    settings={  # by default it takes one job every two seconds, which is not comparable
        "enqueue_single": {"callers": 64, "pool": 20},
        "enqueue_bulk": {"callers": 4, "batch": 1000, "pool": 4},
        "drain_tuned": {"concurrency": 4, "prefetch": 2000, "pool": 10},
        "like_single": {"callers": 32, "pool": 20},
        "like_drain": {"concurrency": 32, "prefetch": 100, "pool": 20},
    },
    rates={"drain_tuned": 16_000, "like_drain": 8000},
)

# Its default is one job at a time. The documented 24 makes the default mode faster, and a goal is measured
# against it.
GRAPHILE = Contender(
    name="graphile-worker",
    protocol=POSTGRES,
    driver="graphile.mjs",
    libraries=("graphile-worker", "pg"),
    settings={
        "enqueue_single": {"callers": 64, "pool": 3},
        "enqueue_bulk": {"callers": 4, "batch": 1000, "pool": 4},
        "drain_default": {"concurrency": 24, "pool": 25},
        "drain_tuned": {"concurrency": 24, "prefetch": 500, "pool": 25},
        "like_single": {"callers": 32, "pool": 3},
        "like_drain": {"concurrency": 32, "prefetch": 500, "pool": 33},
    },
    rates={"drain_default": 1200, "drain_tuned": 17_000, "like_drain": 17_000},
)

# Scaled as its documentation says, but in one process: two cores have no room for four.
GRAPHILE_FOUR = Contender(
    name="graphile-worker, 4 instances",
    protocol=POSTGRES,
    driver="graphile.mjs",
    libraries=("graphile-worker", "pg"),
    settings={"drain_tuned": {"instances": 4, "concurrency": 24, "prefetch": 500, "pool": 10}},
    rates={"drain_tuned": 26_000},
)

RABBITMQ = Contender(
    name="RabbitMQ",
    protocol="AMQP 0-9-1, TCP",
    driver="rabbitmq.mjs",
    libraries=("amqplib",),
    server=servers.RABBITMQ,
    settings={
        "enqueue_single": {"callers": 64},
        "enqueue_bulk": {"callers": 1, "batch": 1000},
        "drain_default": {"prefetch": 0},
        "drain_tuned": {"prefetch": 2000},
        "like_single": {"callers": 32},
        "like_drain": {"prefetch": 32},
    },
    rates={"drain_default": 13_000, "drain_tuned": 20_000, "like_drain": 5000},
)

BULLMQ = Contender(
    name="BullMQ on Redis",
    protocol="RESP (Redis), TCP",
    driver="bullmq.mjs",
    libraries=("bullmq", "ioredis"),
    server=servers.REDIS,
    settings={
        "enqueue_single": {"callers": 64},
        "enqueue_bulk": {"callers": 4, "batch": 1000},
        "drain_default": {"concurrency": 1},
        "drain_tuned": {"concurrency": 300},
        "like_single": {"callers": 32},
        "like_drain": {"concurrency": 32},
    },
    rates={"drain_default": 300, "drain_tuned": 3000, "like_drain": 2000},
)

BEANSTALKD = Contender(
    name="beanstalkd",
    protocol="beanstalk text protocol, TCP",
    driver="beanstalkd.mjs",
    libraries=("jackd",),
    server=servers.BEANSTALKD,
    settings={
        "enqueue_single": {"callers": 64},
        "drain_tuned": {"concurrency": 64},
        "like_single": {"callers": 32},
        "like_drain": {"concurrency": 32},
    },
    rates={"drain_tuned": 700, "like_drain": 700},
)

JETSTREAM = Contender(
    name="NATS JetStream",
    protocol="NATS, TCP",
    driver="nats.mjs",
    libraries=("@nats-io/jetstream",),
    server=servers.NATS,
    settings={
        "enqueue_single": {"callers": 64},
        "enqueue_bulk": {"callers": 2, "batch": 1000},
        "drain_default": {"prefetch": 0},
        "drain_tuned": {"prefetch": 1000},
        "like_single": {"callers": 32},
        "like_drain": {"prefetch": 32},
    },
    rates={"drain_default": 900, "drain_tuned": 1000, "like_drain": 900},
)

CONTENDERS: list[Peer] = [
    PROCRASTINATE,
    PGQUEUER,
    PGMQ,
    PG_BOSS,
    GRAPHILE,
    GRAPHILE_FOUR,
    RABBITMQ,
    BULLMQ,
    BEANSTALKD,
    JETSTREAM,
]
