"""The goals, as ratios within one run: a figure is never compared with one of another machine."""

from collections.abc import Iterator, Sequence

from bench.load.order import Figures
from bench.report import Goal, Report, Row

OURS = "ours-"
GRAPHILE = "graphile-worker"  # two of the goals name its drains
# statements without a client library or a worker: in the table, but not among the peers of the goals
BARE_SQL = "pgmq"


def evaluate_goals(report: Report) -> list[Goal]:
    return [
        *_rates(report.rows),
        *_goals_of_other_targets(),
        *_wake_ups(report.probes),
        *_parked(report.probes),
        *_reads(report.probes),
        *_lone(report.probes),
    ]


def _rates(rows: Sequence[Row]) -> Iterator[Goal]:
    def ours(path: str) -> Row | None:
        """Without API keys, with one process or two, whichever is faster: an operator would choose the same."""
        return _fastest(
            row for row in rows if row.contender.startswith(OURS) and row.path == path and "keys" not in row.contender
        )

    def peer(*paths: str, name: str = "", postgres: bool = True) -> Row | None:
        rivals = (
            row for row in rows if not row.contender.startswith((OURS, "database", BARE_SQL)) and row.path in paths
        )
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
    like, any_peer = ours("like_single"), peer("like_single", postgres=False)
    yield _at_least("like for like, single enqueue", "≥ 2 × the fastest Postgres peer", 2, like, peer("like_single"))
    yield _at_least("", "≥ 2 × the fastest of all peers", 2, like, any_peer)
    tuned = peer("like_drain", name=GRAPHILE)
    yield _at_least("like for like, drain", "≥ 1 × tuned graphile-worker", 1, ours("like_drain"), tuned)


def _fastest(rows: Iterator[Row]) -> Row | None:
    return max(rows, key=lambda row: row.rate, default=None)


def _at_least(path: str, goal: str, least: float, ours: Row | None, reference: Row | None) -> Goal:
    if ours is None or reference is None:
        return _not_measured(path, goal, _rate(ours), _rate(reference))
    ratio = ours.rate / reference.rate
    return Goal(path, goal, _rate(ours), _rate(reference), ratio, _result(ratio >= least))


def _rate(row: Row | None) -> str:
    return f"{row.contender} {row.rate:,.0f}/s" if row else ""


def _result(met: bool) -> str:
    return "met" if met else "missed"


def _not_measured(
    path: str, goal: str, ours: str = "", reference: str = "", why: str = "not measured in this run"
) -> Goal:
    return Goal(path, goal, ours, reference, None, why)


def _goals_of_other_targets() -> Iterator[Goal]:
    yield _not_measured(
        "claim cost with a backlog",
        "≤ 1.3 × in buffers, ≤ 1.5 × in time",
        why="not measured in this run: make bench-flat",
    )
    yield _not_measured(
        "WAL per life, buffers per claim", "≤ 1,200 bytes, ≤ 10", why="not measured in this run: make bench-cost"
    )


def _wake_ups(probes: dict[str, Figures]) -> Iterator[Goal]:
    for name, path, limit_ratio in (
        ("wake_one", "wake-up in one process", 1.2),
        ("wake_across", "wake-up across processes", 2.0),
    ):
        goal = f"p50 ≤ {limit_ratio:g} × the enqueue's own answer"
        figures = probes.get(name)
        yield _wake_up(path, goal, limit_ratio, figures) if figures else _not_measured(path, goal)


def _wake_up(path: str, goal: str, limit_ratio: float, figures: Figures) -> Goal:
    def describe(measurement: str) -> str:
        return f"p50 {figures[f'{measurement}_p50_ms']:.2f} ms, p99 {figures[f'{measurement}_p99_ms']:.2f} ms"

    ratio = figures["arrival_p50_ms"] / figures["answer_p50_ms"]
    return Goal(
        path,
        goal,
        describe("arrival"),
        f"{describe('answer')}, {figures['samples']:,.0f} samples",
        ratio,
        _result(ratio <= limit_ratio),
    )


def _parked(probes: dict[str, Figures]) -> Iterator[Goal]:
    figures = probes.get("parked")
    if figures is None:
        yield _not_measured("parked polls", "≤ 1 % CPU, ≤ 20 kB each, constant database connections")
        return
    path, idle = f"{figures['polls']:,.0f} parked polls", f"without them {figures['idle_cpu']:.2%}"
    yield Goal(path, "≤ 1 % CPU", f"{figures['cpu']:.2%} of a core", idle, None, _result(figures["cpu"] <= 0.01))
    yield Goal("", "≤ 20 kB each", f"{figures['bytes'] / 1000:.1f} kB", "", None, _result(figures["bytes"] <= 20_000))
    before, peak = figures["sessions_before"], figures["sessions"]
    yield Goal(
        "",
        "constant database connections",
        f"{peak:.0f}",
        f"before: {before:.0f}",
        peak / before,
        _result(peak <= before),
    )


def _reads(probes: dict[str, Figures]) -> Iterator[Goal]:
    figures = probes.get("reads")
    if figures is None:
        yield _not_measured("stats and metrics with 5M jobs", "same cost as with 1,000")
        return
    names = [name.removesuffix("_many") for name in figures if name.endswith(("_p50_ms_many", "_buffers_many"))]
    for name in names:
        small, many = figures[f"{name}_few"], figures[f"{name}_many"]
        # A deeper index costs a buffer or two more. Times depend on the machine.
        limit_ratio = 1.5 if name.endswith("_ms") else 1.3
        yield Goal(
            f"reads: {name}",
            f"≤ {limit_ratio} × that with 1,000 jobs",
            f"{many:.2f}",
            f"{small:.2f}",
            many / small,
            _result(many <= limit_ratio * small),
        )


def _lone(probes: dict[str, Figures]) -> Iterator[Goal]:
    goal = "a lone call ≤ 1.1 × as long as without sharing"
    figures = probes.get("lone")
    if figures is None:
        yield _not_measured("coalescing", goal)
        return
    shares, alone = figures["shares_p50_ms"], figures["alone_p50_ms"]
    yield Goal(
        "coalescing",
        goal,
        f"p50 {shares:.2f} ms",
        f"p50 {alone:.2f} ms",
        shares / alone,
        _result(shares / alone <= 1.1),
    )
