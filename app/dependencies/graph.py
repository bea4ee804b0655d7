"""Pure: resolves the parents of a batch to ids, and finds cycles."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from uuid import UUID

from app.errors import Fault, ValidationFailed

MAX_SHOWN = 20  # jobs of a cycle in an error


def resolve(depends_on: Collection[str], refs: Mapping[str, UUID], pointer: str) -> list[UUID]:
    """A parent is a `ref` of the same batch or an id. Duplicates are removed."""
    return list(
        dict.fromkeys(
            refs[name] if name in refs else _parse_id(name, pointer, index) for index, name in enumerate(depends_on)
        )
    )


def _parse_id(name: str, pointer: str, index: int) -> UUID:
    try:
        return UUID(name)
    except ValueError:
        detail = f"{name} is neither a job id nor a ref of this batch" if pointer else f"{name} is not a job id"
        raise ValidationFailed.at(f"{pointer}/depends_on/{index}", detail, "unknown_ref") from None


def cycle_problem(path: Sequence[str], pointer: str) -> ValidationFailed:
    """Lists the jobs of the cycle and points at its first job.

    Shortens a long cycle, because a batch may have a thousand cycles of a thousand jobs each.
    """
    shown = path if len(path) <= MAX_SHOWN else [*path[: MAX_SHOWN - 2], f"... ({len(path) - 1} jobs)", path[-1]]
    cycle = " -> ".join(shown)
    return ValidationFailed(
        f"the dependencies form a cycle: {cycle}", faults=[Fault(f"{pointer}/depends_on", "cycle", cycle)]
    )


def find_cycles(parents: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Yields cycles as paths that begin and end with the same job.

    Removing these first jobs would break every cycle.

    Yields an empty path after each job, so that the caller can pause: half a million edges fit into
    one batch. Follows each edge once. Searches depth first with an explicit stack, because a chain
    of 1000 jobs is deeper than Python's stack.
    """
    done: set[str] = set()
    found: set[str] = set()
    for start in parents:
        path: dict[str, None] = {}  # ordered, with fast lookups
        # an iterator over `start`, then one over the remaining parents of each job of the path
        stack = [iter([start])]
        while stack:
            ref = next(stack[-1], None)
            if ref is None:
                stack.pop()
                if path:
                    done.add(path.popitem()[0])
                yield []
            elif ref in path and ref not in found:
                found.add(ref)
                refs = list(path)
                yield [*refs[refs.index(ref) :], ref]
            elif ref not in path and ref not in done:
                path[ref] = None
                stack.append(iter(parents.get(ref, ())))
