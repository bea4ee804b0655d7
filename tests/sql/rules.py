"""The rules for SQL text. Each rule takes a statement and returns its violation, or None."""

import re
from collections.abc import Callable, Iterable

from tests.sql.statements import TABLES_WITH_LANES, Statement

Rule = Callable[[Statement], str | None]

# Statements that read across lanes: scans that find the lanes to visit, statistics, lists of
# workers. None of them locks a job, and none is on the path of a fast route.
ACROSS_LANES = {
    "maintenance.due_times",
    "maintenance.add_coverage",
    "maintenance.spans_after",
    "jobs.due_jobs",
    "jobs.next_due",
    "leases.due_checks",
    "leases.unused_tokens",
    "leases.count_leases_of_caller",
    "leases.leases_of_worker",
    "leases.ready_lanes",
    "dead_letters.dead_letters_past_retention",
    "jobs.count_waiting",
    "jobs.count_purgeable",
    "jobs.purgeable_jobs",
    "queues.has_jobs",
    "queues.unclaimed_lanes",
    "queues.has_groups",
    "jobs.past_start_deadline",
    "dependencies.unresolved_parents",
    "concurrency.lanes_with_pending",
    "concurrency.all_cooldowns",
    "concurrency.leases_of_queues",
    "locks.expired_keys",
    "stats.unaggregated_lanes",
    "stats.add_durations",
    "stats.counts",
    "stats.rates",
    "stats.durations",
    "stats.oldest_ready",
    "stats.oldest_pending",
    "stats.delete_rates",
    "stats.delete_durations",
    "workers.list_workers",
    "workers.get_worker",
}

_TABLE = "|".join(TABLES_WITH_LANES)
_READS = re.compile(rf"\b(?:FROM|UPDATE|JOIN|USING)\s+(?:{_TABLE})\b(?!\s*\()")
_WRITES = re.compile(rf"\b(?:INSERT INTO|UPDATE|DELETE FROM)\s+(?:{_TABLE})\b")
_MOVES = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM)\s+(?:jobs|finished_jobs|dead_letters)\b")
_FILLED = re.compile(
    rf"INSERT INTO (?:{_TABLE})\b(?: AS \w+)? \(\s*(\w+).*?\)\s*(?:SELECT\s+|VALUES \()(\S+?)[,)]", re.DOTALL
)
_STAR = re.compile(r"(?<![(\'])(?:(\w+)\.)?\*(?!\')")
# The value of `state` in an UPDATE: the text, or the state of another row, except the old state of a job
# that stays as it is ("CASE locked.state WHEN 'ready' THEN 'pending' ELSE locked.state END").
_MAY_BE_READY = r"^'ready'|(?:THEN|ELSE) (?:'ready'|locked\.next_state|jobs\.state)|^new_state"
_PARAMETERS_ONLY = r"make_interval\(\w+ => (?:\$\d+|:\w+)\)"
_IN_LANE = r"\blane = (?:\$1(?!\d)|:lane\b)"


def names_its_lane(statement: Statement) -> bool:
    return re.search(_IN_LANE, statement.code) is not None


def names_its_transition(statement: Statement) -> str | None:
    """A comment names each transition, so that `grep -- '->' app/*/*.sql` lists all of them."""
    if _MOVES.search(statement.code) and "->" not in statement.comment:
        return "moves or changes jobs, and its comment names no transition"
    return None


def names_its_columns(statement: Statement) -> str | None:
    """A star is allowed only for rows that pass from DELETE .. RETURNING to an INSERT with a column
    list, and for the columns of an unnest."""
    for star in _STAR.finditer(statement.code):
        before = statement.code[: star.start()]
        inner = before.count("(") > before.count(")")
        clause = re.findall(r"\b(SELECT|RETURNING)\b", before)[-1:]
        if not (inner and (clause == ["RETURNING"] or star[1] in _unnested(statement))):
            return f"takes all columns: {star[0]}"
    return None


def _unnested(statement: Statement) -> list[str]:
    return re.findall(r"\bunnest\([^)]*\) AS (\w+)", statement.code)


def is_deterministic(statement: Statement) -> str | None:
    match = re.search(
        r"\b(random|clock_timestamp|statement_timestamp|gen_random_uuid|uuidv7|nextval|timeofday)\(", statement.code
    )
    return f"calls {match[1]}" if match else None


def computes_no_time_from_columns(statement: Statement) -> str | None:
    """Citus rejects `now() + column` in UPDATE and DELETE, so the broker computes such times."""
    if not re.search(r"\b(UPDATE|DELETE)\b", statement.code):
        return None
    code = re.sub(rf"now\(\) [-+] {_PARAMETERS_ONLY}", "now()", statement.code)
    return "computes with now()" if re.search(r"now\(\)\s*[-+*/]|[-+*/]\s*now\(\)", code) else None


def uses_no_notify_and_no_session_lock(statement: Statement) -> str | None:
    """NOTIFY holds a cluster-wide lock until after the WAL flush. Advisory locks do not work
    behind a connection pooler."""
    match = re.search(r"\b(NOTIFY|LISTEN|pg_notify|LOCK TABLE|\w*advisory\w*)\b", statement.code, re.IGNORECASE)
    return f"uses {match[1]}" if match else None


def stays_in_its_lane(statement: Statement) -> str | None:
    if str(statement) in ACROSS_LANES:
        return None
    reads, bounds = len(_READS.findall(statement.code)), len(re.findall(_IN_LANE, statement.code))
    if reads > bounds:
        return f"reads tables with lanes {reads} times, but has `lane = :lane` {bounds} times"
    filled = _FILLED.findall(statement.code)
    misplaced = [value for column, value in filled if column != "lane" or value not in ("$1", ":lane", "lane")]
    written = len(re.findall(rf"INSERT INTO (?:{_TABLE})\b", statement.code))
    if misplaced or written != len(filled):
        return f"writes rows whose lane is not evident: {misplaced}"
    return None


def locks_one_lane_in_id_order(statement: Statement) -> str | None:
    for locking in re.finditer(r"SELECT\b(?:(?!SELECT).)*?FOR UPDATE", statement.code, re.DOTALL):
        if _READS.search(locking[0]) and not re.search(_IN_LANE, locking[0]):
            return "FOR UPDATE without `lane = :lane`"
        many = re.search(r"\bid = ANY\(|\bunnest\(", locking[0])
        if many and not re.search(r"ORDER BY (?:\w+\.)?id\s+FOR UPDATE", locking[0]):
            return "locks many rows without ORDER BY id"
    return None


def moves_no_jobs_across_lanes(statement: Statement) -> str | None:
    """A scan finds jobs; a statement of one lane moves them. Old keys and statistics may be deleted
    across lanes, because no request waits for them."""
    if str(statement) in ACROSS_LANES and _MOVES.search(statement.code):
        return "moves jobs across lanes"
    return None


def covers_ready_jobs(statement: Statement) -> str | None:
    """Whatever makes a job ready inserts a ready span that covers it, or no claim would find it."""
    return None if covers_ready_jobs_in(statement.code) else "may make jobs ready, and inserts no ready span"


def covers_ready_jobs_in(code: str) -> bool:
    changed = re.findall(r"UPDATE jobs\s+SET\b.*?\bstate = (.*?)(?:,\s*\w+ = |\sFROM\s|\sWHERE\s|;|$)", code, re.DOTALL)
    makes_ready = any(re.search(_MAY_BE_READY, value) for value in changed) or "INSERT INTO jobs" in code
    return not makes_ready or "INSERT INTO ready_spans" in code


RULES: tuple[Rule, ...] = (
    names_its_transition,
    names_its_columns,
    is_deterministic,
    computes_no_time_from_columns,
    uses_no_notify_and_no_session_lock,
    stays_in_its_lane,
    locks_one_lane_in_id_order,
    moves_no_jobs_across_lanes,
    covers_ready_jobs,
)


def violations(rule: Rule, statements: Iterable[Statement]) -> dict[str, str]:
    """Returns the statements that break the rule, and how."""
    found = {str(statement): rule(statement) for statement in statements}
    return {name: violation for name, violation in found.items() if violation is not None}
