"""The goals, as ratios within one run: never a figure of one machine against a figure of another."""

from collections.abc import Iterator, Sequence

from bench.load.order import Figures
from bench.report import Goal, Report, Row

OURS = "ours-"
GRAPHILE = "graphile-worker"  # whose drains two of the goals name
BARE = "pgmq"  # statements without a client library or a worker: told, but no queue that the goals speak of


def reckoned(report: Report) -> list[Goal]:
    return [
        *_rates(report.rows),
        *_elsewhere(),
        *_wake_ups(report.probes),
        *_parked(report.probes),
        *_reads(report.probes),
        *_lone(report.probes),
    ]


def _rates(rows: Sequence[Row]) -> Iterator[Goal]:
    def ours(path: str) -> Row | None:
        """Without keys, with one process or two, whichever is faster: that is what an operator chooses too."""
        return _fastest(
            row for row in rows if row.contender.startswith(OURS) and row.path == path and "keys" not in row.contender
        )

    def peer(*paths: str, name: str = "", postgres: bool = True) -> Row | None:
        rivals = (row for row in rows if not row.contender.startswith((OURS, "database", BARE)) and row.path in paths)
        return _fastest(row for row in rivals if name in row.contender and (row.postgres or not postgres))

    def limit(path: str) -> Row | None:
        return _fastest(row for row in rows if row.contender == "database" and row.path == path)

    yield _at_least(
        "enqueue one per request", "≥ 5 × the fastest Postgres peer", 5, ours("enqueue_1"), peer("enqueue_single")
    )
    yield _at_least("", "≥ 0.8 of pgbench single-row INSERT, 32 clients", 0.8, ours("enqueue_1"), limit("insert_1"))
    yield _at_least(
        "enqueue 1000 per request",
        "≥ 4 × the fastest Postgres peer in bulk",
        4,
        ours("enqueue_1000"),
        peer("enqueue_bulk"),
    )
    yield _at_least("", "≥ 0.8 of the database alone", 0.8, ours("enqueue_1000"), limit("enqueue_1000"))
    batch, drains = ours("claim_100_settle_100"), ("drain_default", "drain_tuned")
    yield _at_least("claim 100 + settle 100", "≥ 1.8 × the fastest Postgres peer's drain", 1.8, batch, peer(*drains))
    yield _at_least("", "≥ 0.75 of the database alone", 0.75, batch, limit("claim_100_settle_100"))
    single = ours("claim_1_complete_1")
    yield _at_least(
        "claim 1 + complete 1", "≥ 2 × graphile-worker's default drain", 2, single, peer("drain_default", name=GRAPHILE)
    )
    like, anybody = ours("like_single"), peer("like_single", postgres=False)
    yield _at_least("like for like, single enqueue", "≥ 2 × the fastest Postgres peer", 2, like, peer("like_single"))
    yield _at_least("", "≥ 2 × the fastest of all peers", 2, like, anybody)
    tuned = peer("like_drain", name=GRAPHILE)
    yield _at_least("like for like, drain", "≥ 1 × tuned graphile-worker", 1, ours("like_drain"), tuned)


def _fastest(rows: Iterator[Row]) -> Row | None:
    return max(rows, key=lambda row: row.rate, default=None)


def _at_least(path: str, goal: str, least: float, ours: Row | None, reference: Row | None) -> Goal:
    if ours is None or reference is None:
        return _unmeasured(path, goal, _rate(ours), _rate(reference))
    ratio = ours.rate / reference.rate
    return Goal(path, goal, _rate(ours), _rate(reference), ratio, _verdict(ratio >= least))


def _rate(row: Row | None) -> str:
    return f"{row.contender} {row.rate:,.0f}/s" if row else ""


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def _unmeasured(
    path: str, goal: str, ours: str = "", reference: str = "", why: str = "not measured in this run"
) -> Goal:
    return Goal(path, goal, ours, reference, None, why)


def _elsewhere() -> Iterator[Goal]:
    yield _unmeasured(
        "claim cost in a crowd", "≤ 1.3 × in buffers, ≤ 1.5 × in time", why="not measured in this run: make bench-flat"
    )
    yield _unmeasured(
        "WAL per life, buffers per claim", "≤ 1,200 bytes, ≤ 10", why="not measured in this run: make bench-cost"
    )


def _wake_ups(probes: dict[str, Figures]) -> Iterator[Goal]:
    for name, path, most in (
        ("wake_one", "wake-up in one process", 1.2),
        ("wake_across", "wake-up across processes", 2.0),
    ):
        goal = f"p50 ≤ {most:g} × the enqueue's own answer"
        told = probes.get(name)
        yield _wake_up(path, goal, most, told) if told else _unmeasured(path, goal)


def _wake_up(path: str, goal: str, most: float, told: Figures) -> Goal:
    def shown(what: str) -> str:
        return f"p50 {told[f'{what}_p50_ms']:.2f} ms, p99 {told[f'{what}_p99_ms']:.2f} ms"

    ratio = told["arrival_p50_ms"] / told["answer_p50_ms"]
    return Goal(
        path,
        goal,
        shown("arrival"),
        f"{shown('answer')}, {told['samples']:,.0f} samples",
        ratio,
        _verdict(ratio <= most),
    )


def _parked(probes: dict[str, Figures]) -> Iterator[Goal]:
    told = probes.get("parked")
    if told is None:
        yield _unmeasured("parked polls", "≤ 1 % CPU, ≤ 20 kB each, constant database connections")
        return
    path, idle = f"{told['polls']:,.0f} parked polls", f"without them {told['idle_cpu']:.2%}"
    yield Goal(path, "≤ 1 % CPU", f"{told['cpu']:.2%} of a core", idle, None, _verdict(told["cpu"] <= 0.01))
    yield Goal("", "≤ 20 kB each", f"{told['bytes'] / 1000:.1f} kB", "", None, _verdict(told["bytes"] <= 20_000))
    before, most = told["sessions_before"], told["sessions"]
    yield Goal(
        "",
        "constant database connections",
        f"{most:.0f}",
        f"before: {before:.0f}",
        most / before,
        _verdict(most <= before),
    )


def _reads(probes: dict[str, Figures]) -> Iterator[Goal]:
    told = probes.get("reads")
    if told is None:
        yield _unmeasured("stats and metrics with 5M jobs", "same cost as with 1,000")
        return
    figures = [name.removesuffix("_many") for name in told if name.endswith(("_p50_ms_many", "_buffers_many"))]
    for name in figures:
        few, many = told[f"{name}_few"], told[f"{name}_many"]
        # A deeper index is a buffer or two more; a time may be the machine's.
        most = 1.5 if name.endswith("_ms") else 1.3
        yield Goal(
            f"reads: {name}",
            f"≤ {most} × that with 1,000 jobs",
            f"{many:.2f}",
            f"{few:.2f}",
            many / few,
            _verdict(many <= most * few),
        )


def _lone(probes: dict[str, Figures]) -> Iterator[Goal]:
    goal = "a lone call ≤ 1.1 × as long as where nobody shares"
    told = probes.get("lone")
    if told is None:
        yield _unmeasured("coalescing", goal)
        return
    shares, alone = told["shares_p50_ms"], told["alone_p50_ms"]
    yield Goal(
        "coalescing",
        goal,
        f"p50 {shares:.2f} ms",
        f"p50 {alone:.2f} ms",
        shares / alone,
        _verdict(shares / alone <= 1.1),
    )
