"""Decides from a server's settings whether it keeps what it has acknowledged. Pure.

`server_checks` reads the settings. See docs/reliability/rules.md#r19.
"""

from collections.abc import Iterator, Mapping

Facts = Mapping[str, str | int | None]


def durability_failures(facts: Facts) -> Iterator[str]:
    """Settings with which an acknowledged job can be lost. With `LONGSHORE_REQUIRE_DURABLE` the
    broker refuses such a server."""
    if facts["fsync"] != "on":
        yield "fsync is off: a power cut loses jobs"
    if facts["full_page_writes"] != "on":
        yield "full_page_writes is off: a power cut can tear pages"
    if facts["synchronous_commit"] == "off":
        yield "synchronous_commit is off: a crash loses the last jobs"
    if facts["synchronous_commit"] == "local" and facts["standby_names"]:
        yield "synchronous_commit is local: a failover loses the last jobs"


def durability_warnings(facts: Facts, connections: int) -> Iterator[str]:
    """Settings that lose nothing but that an operator should know about. `connections` is the
    number that one broker process may open."""
    if facts["data_checksums"] != "on":
        yield "data_checksums is off: a broken disk goes unnoticed"
    if facts["standby_names"] and facts["standbys"] == 0:
        yield "no synchronous standby is connected: writes wait for one"
    brokers, limit = facts["brokers"], facts["connection_limit"]
    assert isinstance(brokers, int)
    assert isinstance(limit, int)
    if brokers * connections > limit:
        yield f"{brokers} broker processes may open {connections} connections each, the server accepts {limit}"
