"""The faults, one context manager each: the fault lasts as long as the block, and leaving it heals.

Each yields the numbers of the affected brokers."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import asyncpg

from tests.chaos.cluster import Cluster
from tests.chaos.options import Options
from tests.chaos.proxy import Mode
from tests.chaos.standby import ReplicatedPostgres

BrokerNumbers = list[int]
Nemesis = Callable[[Cluster, random.Random], AbstractContextManager[BrokerNumbers]]

TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'longshore%'"


# Brokers


@contextmanager
def broker_kill(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    victim = rng.choice(cluster.numbers)
    cluster.kill_broker(victim)
    yield [victim]
    cluster.restart_broker(victim)


@contextmanager
def broker_stop(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    """Stops a broker, like a pause of its machine."""
    victim = rng.choice(cluster.numbers)
    cluster.brokers[victim].send_signal(signal.SIGSTOP)
    yield [victim]
    cluster.brokers[victim].send_signal(signal.SIGCONT)


@contextmanager
def broker_roll(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    """A rolling restart: each broker gets SIGTERM when the one before serves again."""
    yield cluster.numbers
    for number in cluster.numbers:
        cluster.terminate_broker(number)
        cluster.restart_broker(number)


@contextmanager
def long_outage_clock(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    """All brokers are down for 90 seconds of the database's clock, which jumps ahead."""
    for number in cluster.numbers:
        cluster.kill_broker(number)
    cluster.postgres.execute("UPDATE clock_jump SET by = by + interval '90 s'")
    yield cluster.numbers
    for number in cluster.numbers:
        cluster.restart_broker(number)


# Postgres


@contextmanager
def postgres_kill(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    cluster.postgres.signal(signal.SIGKILL)
    yield cluster.numbers
    cluster.restart_postgres()


@contextmanager
def postgres_stop(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    cluster.postgres.signal(signal.SIGSTOP)
    yield cluster.numbers
    cluster.postgres.signal(signal.SIGCONT)


@contextmanager
def postgres_terminate(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    """Terminates all sessions of the brokers, once; doing it repeatedly would be a connection
    storm."""
    cluster.postgres.rows(TERMINATE)
    yield cluster.numbers


@contextmanager
def failover(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    """Kills the primary permanently and promotes its synchronous standby."""
    postgres = cluster.postgres
    assert isinstance(postgres, ReplicatedPostgres)
    postgres.ensure_standby()
    postgres.kill()
    yield cluster.numbers
    postgres.promote_standby()
    cluster.retarget_links()


# The network


def network_fault(kind: str, mode: Mode) -> Nemesis:
    """Builds a fault of one link of a kind or, half of the time, of all links of that kind."""

    @contextmanager
    def disturb(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
        affected = cluster.numbers if rng.random() < 0.5 else [rng.choice(cluster.numbers)]
        links = [f"{kind}{number}" for number in affected]
        cluster.network.set_mode(links, mode)
        yield affected
        cluster.network.set_mode(links, "open", late=rng.random() < 0.5)

    return disturb


# Workers


@contextmanager
def worker_kill(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    rng.choice(cluster.workers.processes).send_signal(signal.SIGKILL)
    yield []


@contextmanager
def worker_stop(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    """Stops a worker past its leases: when it continues, other workers have its jobs."""
    victim = rng.choice(cluster.workers.processes)
    victim.send_signal(signal.SIGSTOP)
    yield []
    time.sleep(cluster.options.lease + 0.5)
    victim.send_signal(signal.SIGCONT)


# Other clients of the database


@contextmanager
def old_snapshot(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    with cluster.postgres.open_transactions(
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM jobs"
    ):
        yield []


@contextmanager
def pool_starvation(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    """Takes a lock that every write waits for: soon every pooled connection waits."""
    with cluster.postgres.open_transactions("LOCK TABLE jobs IN EXCLUSIVE MODE"):
        yield cluster.numbers


@contextmanager
def connections_taken(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    """Terminates the brokers' sessions, and takes the free connections before they reconnect."""
    cluster.postgres.rows(TERMINATE)
    with cluster.postgres.open_transactions(sessions=100):
        yield cluster.numbers


@contextmanager
def clock_jump(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    """Sets the clock back by an hour for a while, then an hour ahead for good, so that no lease
    stays."""
    cluster.postgres.execute("UPDATE clock_jump SET by = by - interval '1 hour'")
    yield cluster.numbers
    cluster.postgres.execute("UPDATE clock_jump SET by = by + interval '2 hours'")


@contextmanager
def migration(cluster: Cluster, rng: random.Random) -> Iterator[BrokerNumbers]:
    """A deployment while brokers serve: migrate, add a column and an index concurrently, drop
    both."""
    command = [sys.executable, "-m", "app", "migrate"]
    subprocess.run(command, env={"DATABASE_URL": cluster.postgres.dsn}, check=True, capture_output=True, timeout=120)
    run_ddl_with_retries(cluster, "ALTER TABLE jobs ADD COLUMN chaos integer")
    cluster.postgres.execute("CREATE INDEX CONCURRENTLY chaos ON jobs (chaos)")
    yield cluster.numbers
    cluster.postgres.execute("DROP INDEX CONCURRENTLY chaos")
    run_ddl_with_retries(cluster, "ALTER TABLE jobs DROP COLUMN chaos")


def run_ddl_with_retries(cluster: Cluster, ddl: str) -> None:
    """Waits only briefly for the lock, and retries (docs/reliability/rules.md#r18)."""
    while True:
        try:
            cluster.postgres.execute(f"SET lock_timeout = '200ms'; {ddl}")
        except asyncpg.LockNotAvailableError:
            time.sleep(0.1)
        else:
            return


SHORT: dict[str, Nemesis] = {
    "broker_kill": broker_kill,
    "broker_stop": broker_stop,
    "broker_roll": broker_roll,
    "postgres_kill": postgres_kill,
    "postgres_stop": postgres_stop,
    "postgres_terminate": postgres_terminate,
    "db_cut": network_fault("db", "cut"),
    "db_black_hole": network_fault("db", "black_hole"),
    "db_lost_replies": network_fault("db", "lost_replies"),
    "client_cut": network_fault("client", "cut"),
    "client_black_hole": network_fault("client", "black_hole"),
    "client_lost_replies": network_fault("client", "lost_replies"),
    "worker_kill": worker_kill,
    "worker_stop": worker_stop,
    "old_snapshot": old_snapshot,
    "pool_starvation": pool_starvation,
    "connections_taken": connections_taken,
}
FULL: dict[str, Nemesis] = SHORT | {
    "clock_jump": clock_jump,
    "long_outage_clock": long_outage_clock,
    "migration": migration,
    "failover": failover,
}

NEEDS_POSTGRES = {
    "postgres_terminate",
    "old_snapshot",
    "pool_starvation",
    "connections_taken",
    "clock_jump",
    "migration",
    "failover",
}
EXCLUSIVE = {"long_outage_clock"}  # never together with another nemesis


def conflict(*names: str) -> bool:
    """Returns whether the nemeses exclude each other: a stopped broker cannot exit on SIGTERM,
    and a dead Postgres executes nothing."""
    if EXCLUSIVE.intersection(names) and len(names) > 1:
        return True
    kinds = ["postgres" if name in NEEDS_POSTGRES else name.partition("_")[0] for name in names]
    return len(set(kinds)) < len(kinds)


def enabled_nemeses(options: Options) -> list[str]:
    """Returns the names of the nemeses of this run."""
    return list(options.nemeses or (FULL if options.full else SHORT))
