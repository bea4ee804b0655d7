"""Whether this database keeps what it has acknowledged, by what it is set to (R19). Pure; `inspection` asks."""

from collections.abc import Iterator, Mapping

Facts = Mapping[str, str | int | None]


def durability_failures(facts: Facts) -> Iterator[str]:
    """With any of these an acknowledged job can be gone: `LONGSHORE_REQUIRE_DURABLE` refuses such a server."""
    if facts["fsync"] != "on":
        yield "fsync is off: a power cut loses jobs"
    if facts["full_page_writes"] != "on":
        yield "full_page_writes is off: a power cut can tear pages"
    if facts["synchronous_commit"] == "off":
        yield "synchronous_commit is off: a crash loses the last jobs"
    if facts["synchronous_commit"] == "local" and facts["standby_names"]:
        yield "synchronous_commit is local: a failover loses the last jobs"


def durability_warnings(facts: Facts, connections: int) -> Iterator[str]:
    """Nothing is lost by them, yet somebody should know. `connections` is what one broker process may open."""
    if facts["data_checksums"] != "on":
        yield "data_checksums is off: a broken disk goes unnoticed"
    if facts["standby_names"] and facts["standbys"] == 0:
        yield "no synchronous standby is connected: writes wait for one"
    brokers, most = facts["brokers"], facts["most_connections"]
    assert isinstance(brokers, int)
    assert isinstance(most, int)
    if brokers * connections > most:
        yield f"{brokers} broker processes may open {connections} connections each, the server takes {most}"
