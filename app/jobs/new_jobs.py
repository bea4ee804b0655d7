"""New jobs of one lane as columns, in the form in which the statement `enqueue` takes them."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, overload

from app.db.queries import to_columns
from app.jobs.rows import NewJob

Column: TypeAlias = Sequence[Any]

_COLLAPSIBLE = ("state", "run_at", "priority", "max_attempts", "job_type")


class NewJobs(Sequence[NewJob]):
    """New jobs of one lane, at least one, as columns. As a sequence, builds rows when they are read.

    `columns` has each field of NewJob:

    - None, if all values are NULL; see `to_columns`
    - one value, if the field is collapsible and all values are equal, as in most batches. The
      statement repeats this value for every job. This saves time, because the driver takes 0.5 to
      1.8 µs to encode a value.
    - otherwise one value for each job
    """

    def __init__(self, columns: dict[str, Column | None]) -> None:
        """`columns` has for each field None, or one value for each job."""
        self._size = len(columns["id"] or ())
        self.columns = columns
        for name in _COLLAPSIBLE:
            column = columns[name]
            if column and column.count(column[0]) == self._size:
                columns[name] = column[:1]

    @classmethod
    def of(cls, rows: Sequence[NewJob]) -> "NewJobs":
        """Converts rows to columns, unless they are columns already."""
        return rows if isinstance(rows, NewJobs) else cls(to_columns(rows))

    @property
    def common_state(self) -> str | None:
        """The state of all jobs. None if they have different states."""
        states = self.columns["state"]
        return states[0] if states and len(states) == 1 else None

    def sizes(self) -> list[int]:
        """Returns the size of the large columns of each job.

        A job may have a thousand parents, and its row contains them twice.
        """
        sizes = list(map(len, self.values("payload")))
        for name, factor in (("metadata", 1), ("depends_on", 2)):
            if self.columns[name]:
                sizes = [size + factor * len(text or "") for size, text in zip(sizes, self.values(name), strict=True)]
        return sizes

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[NewJob]:
        return map(NewJob._make, zip(*map(self.values, NewJob._fields), strict=True))

    @overload
    def __getitem__(self, index: int) -> NewJob: ...

    @overload
    def __getitem__(self, index: slice) -> "NewJobs": ...

    def __getitem__(self, index: int | slice) -> "NewJob | NewJobs":
        if isinstance(index, int):
            return NewJob._make(self.values(name)[index] for name in NewJob._fields)
        if len(range(self._size)[index]) == self._size:
            return self
        return NewJobs({name: column and self.values(name)[index] for name, column in self.columns.items()})

    def values(self, name: str) -> Column:
        """Returns the column with one value for each job."""
        column = self.columns[name] or (None,)
        return column if len(column) == self._size else tuple(column) * self._size
