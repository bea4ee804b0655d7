"""The rules for SQL text that Citus can route to the node of one lane. Each rule takes a statement
and returns its violation, or None.

NOT_YET lists the statements that still break a rule. The list may only become shorter.
"""

import re
from collections.abc import Iterator

from tests.sql.rules import ACROSS_LANES, Rule, names_its_lane
from tests.sql.statements import TABLES_WITH_LANES, Statement

_TABLE = "|".join(TABLES_WITH_LANES)
_READ = re.compile(rf"\b(?:FROM|JOIN|USING)\s+({_TABLE})\b(?!\s*\()")
_SMALL = "queues|job_types|schedules|api_keys|config_versions|clock_lags|workers|poll_history|leaders|queue_id_range"
# Functions that are not functions of the catalogue, or that are IMMUTABLE.
_IMMUTABLE = {"coalesce", "greatest", "least", "nullif", "any", "all", "array", "unnest", "cardinality", "values", "in"}


def in_parentheses(code: str) -> Iterator[str]:
    """Yields the text between each pair of parentheses."""
    opened: list[int] = []
    for at, character in enumerate(code):
        if character == "(":
            opened.append(at + 1)
        elif character == ")":
            yield code[opened.pop() : at]


def top_level(code: str) -> str:
    """Returns the text outside of all parentheses."""
    depth, text = 0, []
    for character in code:
        depth += (character == "(") - (character == ")")
        text.append(character if depth == 0 else "")
    return "".join(text)


def until_closed(code: str) -> str:
    """Returns the text up to the parenthesis that closes the one before it."""
    depth = 0
    for at, character in enumerate(code):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return code[:at]
    return code


def inserts_outside_of_ctes(statement: Statement) -> str | None:
    """Citus does not route a statement with an INSERT in a CTE: it runs each CTE on all nodes and
    commits in two phases."""
    in_cte = any(re.match(r"\s*INSERT INTO", text) for text in in_parentheses(statement.code))
    return "has an INSERT in a CTE" if in_cte and str(statement) not in ACROSS_LANES else None


def ends_with_select_after_a_modifying_cte(statement: Statement) -> str | None:
    modifying = any(re.match(r"\s*(INSERT INTO|UPDATE|DELETE FROM)\b", text) for text in in_parentheses(statement.code))
    last = re.search(r"\bINSERT INTO\b.*\bSELECT\b", top_level(statement.code), re.DOTALL)
    return "ends with INSERT .. SELECT after a CTE that changes rows" if modifying and last else None


def sets_no_bare_subscript(statement: Statement) -> str | None:
    """Citus takes a subscript that is read in SET for one that is assigned, and its coordinator
    crashes."""
    for assigned in re.finditer(r"\bSET\b(.*?)(?=\bWHERE\b|\bFROM\b|\bRETURNING\b|$)", statement.code, re.DOTALL):
        if re.search(r"=\s*(?:\([^()]*\)|[\w.:]+)\s*\[", assigned[1]):
            return "a SET has an array subscript as its value"
    return None


def locks_rows_of_one_table(statement: Statement) -> str | None:
    """Citus reads the hidden columns of a join with FOR UPDATE in a wrong format."""
    for locking in re.finditer(r"\bSELECT\b(?:(?!\bSELECT\b).)*?\bFOR (?:NO KEY )?UPDATE", statement.code, re.DOTALL):
        if re.search(r"\bJOIN\b|\bFROM\s+\w+(?:\s+AS\s+\w+)?\s*,|\bunnest\(", locking[0]):
            return "FOR UPDATE reads more than one table"
    return None


def resolves_conflicts_with_immutable_functions(statement: Statement) -> str | None:
    for conflict in re.finditer(r"\bON CONFLICT\b", statement.code):
        clause = re.split(r"\bRETURNING\b", until_closed(statement.code[conflict.end() :]))[0]
        called = {name.lower() for name in re.findall(r"\b([a-z_]\w*)\(", clause)} - _IMMUTABLE
        if called:
            return f"calls {', '.join(sorted(called))} in ON CONFLICT"
    return None


def reads_lanes_one_by_one(statement: Statement) -> str | None:
    """Citus rejects recursion, LATERAL and correlated subqueries over lanes."""
    if names_its_lane(statement):
        return None
    if _READ.search(statement.code) and re.search(r"\bRECURSIVE\b|\bLATERAL\b|\bunnest\(:lanes", statement.code):
        return "repeats a query for each lane"
    return None


def changes_small_tables_alone(statement: Statement) -> str | None:
    if re.search(rf"\b(?:UPDATE|DELETE FROM)\s+(?:{_SMALL})\b", statement.code) and _READ.search(statement.code):
        return "changes a small table and reads a table with lanes"
    return None


CLUSTER_RULES: tuple[Rule, ...] = (
    inserts_outside_of_ctes,
    ends_with_select_after_a_modifying_cte,
    sets_no_bare_subscript,
    locks_rows_of_one_table,
    resolves_conflicts_with_immutable_functions,
    reads_lanes_one_by_one,
    changes_small_tables_alone,
)

NOT_YET: dict[Rule, set[str]] = {
    inserts_outside_of_ctes: {
        "concurrency.admit",
        "concurrency.apply_rules_to_page",
        "dead_letters.purge",
        "dead_letters.remove",
        "dead_letters.replay",
        "dependencies.unblock",
        "jobs.cancel_waiting",
        "jobs.enqueue",
        "jobs.make_due_ready",
        "jobs.move_unstarted_to_dead_letters",
        "jobs.purge_waiting",
        "jobs.replace_waiting",
        "jobs.run_now",
        "jobs.update_job",
        "leases.complete",
        "leases.finish_cancelled",
        "leases.move_to_dead_letters",
        "leases.requeue",
        "stats.aggregate",
    },
    ends_with_select_after_a_modifying_cte: {
        "concurrency.record_usage",
        "stats.aggregate",
    },
    locks_rows_of_one_table: {
        "dependencies.unblock",
        "leases.finish_cancelled",
        "leases.move_to_dead_letters",
        "leases.requeue",
    },
    reads_lanes_one_by_one: {
        "concurrency.lanes_with_pending",
        "concurrency.leases_of_queues",
        "leases.leases_of_worker",
        "leases.ready_lanes",
        "stats.oldest_pending",
        "stats.oldest_ready",
        "workers.get_worker",
        "workers.list_workers",
    },
}
