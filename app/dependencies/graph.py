"""Pure: from what producers call their jobs' parents to ids, and whether anybody waits for himself."""

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from app.errors import Fault, ValidationFailed

MAX_SHOWN = 20  # names of one cycle


def resolve(depends_on: Sequence[str], refs: Mapping[str, UUID], at: str) -> list[UUID]:
    """A parent is named by a `ref` of the same batch, or else by its id. Named twice, it is one."""
    return list(
        dict.fromkeys(refs[name] if name in refs else _parsed(name, at, index) for index, name in enumerate(depends_on))
    )


def _parsed(name: str, at: str, index: int) -> UUID:
    try:
        return UUID(name)
    except ValueError:
        detail = f"{name} is neither a job's id nor a ref of this batch" if at else f"{name} is not the id of a job"
        raise ValidationFailed.at(f"{at}/depends_on/{index}", detail, "unknown_ref") from None


def check_no_cycle(parents: Mapping[str, Sequence[str]], pointers: Mapping[str, str]) -> None:
    """`parents` maps each ref to the refs that it depends on."""
    for path in find_cycles(parents):
        raise cycle_problem(path, pointers[path[0]])


def cycle_problem(path: Sequence[str], at: str) -> ValidationFailed:
    """Names the jobs of the cycle, the first few of a long one, and points at its first job. A batch may have a thousand cycles of a
    thousand jobs each."""
    shown = path if len(path) <= MAX_SHOWN else [*path[: MAX_SHOWN - 2], f"... ({len(path) - 1} jobs)", path[-1]]
    cycle = " -> ".join(shown)
    return ValidationFailed(
        f"jobs that wait for each other: {cycle}", faults=[Fault(f"{at}/depends_on", "cycle", cycle)]
    )


def find_cycles(parents: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yields cycles, each as a path that ends where it began. Removing the first job of every path leaves no cycle.

    Searches depth first with an explicit stack, because a chain of 1000 jobs is deeper than Python's stack. Follows each edge once,
    because half a million edges fit into one batch.
    """
    done: set[str] = set()
    found: set[str] = set()
    for start in parents:
        path: dict[str, None] = {}  # ordered, with fast lookups
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            ref, left = stack.pop()
            if left:
                path.popitem()
                done.add(ref)
            elif ref in path:
                if ref not in found:
                    found.add(ref)
                    refs = list(path)
                    yield [*refs[refs.index(ref) :], ref]
            elif ref not in done:
                path[ref] = None
                stack.append((ref, True))
                stack += [(parent, False) for parent in reversed(parents.get(ref, ()))]
