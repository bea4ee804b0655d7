"""Pure: from what producers call their jobs' parents to ids, and whether anybody waits for himself."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from app.errors import Fault, ValidationFailed


def resolve(depends_on: Sequence[str], refs: Mapping[str, UUID], at: str) -> list[UUID]:
    """A parent is named by a `ref` of the same batch, or else by its id. Named twice, it is one."""
    return list(dict.fromkeys(_parent(name, refs, f"{at}/depends_on/{index}") for index, name in enumerate(depends_on)))


def _parent(name: str, refs: Mapping[str, UUID], pointer: str) -> UUID:
    if name in refs:
        return refs[name]
    try:
        return UUID(name)
    except ValueError:
        raise ValidationFailed.at(pointer, f"{name} is neither a job's id nor a ref of this batch", "unknown_ref") from None


def check_no_cycle(parents: Mapping[str, Sequence[str]], pointers: Mapping[str, str]) -> None:
    """`parents` by ref, only refs. The problem tells the whole way round."""
    done: set[str] = set()
    for ref in parents:
        path = _cycle(ref, parents, done)
        if path:
            told = " -> ".join(path)
            fault = Fault(f"{pointers[path[0]]}/depends_on", "cycle", told)
            raise ValidationFailed(f"jobs that wait for each other: {told}", faults=[fault])


def _cycle(start: str, parents: Mapping[str, Sequence[str]], done: set[str]) -> list[str]:
    """Depth first, with a stack of its own: a chain of 1000 jobs is deeper than Python's."""
    path: dict[str, None] = {}  # in order, and quick to ask: half a million edges fit into one batch
    stack: list[tuple[str, bool]] = [(start, False)]
    while stack:
        ref, left = stack.pop()
        if left:
            path.popitem()
            done.add(ref)
        elif ref in path:
            way = list(path)
            return [*way[way.index(ref) :], ref]
        elif ref not in done:
            path[ref] = None
            stack.append((ref, True))
            stack += [(parent, False) for parent in reversed(parents.get(ref, ()))]
    return []
