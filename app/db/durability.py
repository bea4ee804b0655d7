"""Decides from the settings of a server whether acknowledged writes can be lost. No I/O.

`server_checks` reads the settings. See docs/reliability/rules.md#r19.
"""

from collections.abc import Iterator, Mapping

# The columns of a SELECT for `durability_failures`.
DURABILITY_COLUMNS = """
    current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS standby_names
"""

ServerRow = Mapping[str, str | int | None]  # the settings of a server, and counts of its connections


def durability_failures(server: ServerRow) -> Iterator[str]:
    """Yields a sentence for each setting of the server that can lose an acknowledged job. With
    `LONGSHORE_REQUIRE_DURABLE` the broker does not use a server with such a setting."""
    if server["fsync"] != "on":
        yield "fsync is off: a power cut loses jobs"
    if server["full_page_writes"] != "on":
        yield "full_page_writes is off: a power cut can tear pages"
    if server["synchronous_commit"] == "off":
        yield "synchronous_commit is off: a crash loses the last jobs"
    if server["synchronous_commit"] == "local" and server["standby_names"]:
        yield "synchronous_commit is local: a failover loses the last jobs"


def durability_warnings(server: ServerRow, connections: int) -> Iterator[str]:
    """Yields a sentence for each problem of the server that loses no job, but that an operator
    should know about. `connections` is the number of connections that one broker process may
    open."""
    if server["data_checksums"] != "on":
        yield "data_checksums is off: a broken disk goes unnoticed"
    if server["standby_names"] and server["standbys"] == 0:
        yield "no synchronous standby is connected: writes wait for one"
    brokers, limit = server["brokers"], server["connection_limit"]
    assert isinstance(brokers, int)
    assert isinstance(limit, int)
    if brokers * connections > limit:
        yield f"{brokers} broker processes may open {connections} connections each, the server accepts {limit}"
