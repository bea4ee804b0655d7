"""Resolves the parents of a job to ids, and finds cycles in a batch. No I/O."""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from uuid import UUID

from app.errors import Fault, ValidationFailed

MAX_SHOWN = 20  # jobs of a cycle in an error


def resolve(depends_on: Collection[str], refs: Mapping[str, UUID], pointer: str) -> list[UUID]:
    """Returns the ids of the parents in `depends_on`, each once.

    A parent is the `ref` of a job in the same batch, or an id. Raises ValidationFailed for names
    that are neither. `pointer` is the JSON pointer to the job in the request.
    """
    try:
        return list(dict.fromkeys(refs[name] if name in refs else UUID(name) for name in depends_on))
    except ValueError:
        raise ValidationFailed.of(id_faults(depends_on, refs, pointer)) from None


def id_faults(depends_on: Collection[str], refs: Container[str] = (), pointer: str = "") -> list[Fault]:
    """Returns a fault for each name that is neither a ref nor an id."""
    reason = "neither a job id nor a ref of this batch" if pointer else "not a job id"
    return [
        Fault(f"{pointer}/depends_on/{index}", "unknown_ref", f"{name} is {reason}")
        for index, name in enumerate(depends_on)
        if name not in refs and not _is_id(name)
    ]


def _is_id(name: str) -> bool:
    try:
        UUID(name)
    except ValueError:
        return False
    return True


def cycle_problem(path: Sequence[str], pointer: str) -> ValidationFailed:
    """Builds the problem that reports a cycle and lists the jobs of the cycle.

    `pointer` is the JSON pointer to the first of these jobs. The list of a long cycle is shortened,
    because a batch may have a thousand cycles of a thousand jobs each.
    """
    shown = path if len(path) <= MAX_SHOWN else [*path[: MAX_SHOWN - 2], f"... ({len(path) - 1} jobs)", path[-1]]
    cycle = " -> ".join(shown)
    return ValidationFailed(
        f"the dependencies form a cycle: {cycle}", faults=[Fault(f"{pointer}/depends_on", "cycle", cycle)]
    )


def find_cycles(parents: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Yields cycles among the jobs, as paths that begin and end with the same job.

    `parents` maps each job to its parents. Yields enough cycles to break all: no cycle is left once
    the first job of each path is rejected. Also yields an empty path after each job: the loop over
    the paths can pause there, because a batch may have half a million dependencies.

    Follows each dependency once. Searches depth first with an explicit stack, because a chain of
    1000 jobs is deeper than Python's stack.
    """
    done: set[str] = set()
    found: set[str] = set()
    for start in parents:
        path: dict[str, None] = {}  # a dict, because it is ordered and finds a key fast
        # The first iterator yields `start`. The others yield the remaining parents of the jobs of
        # the path.
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
