"""What is told about a queue."""

from app.web.shapes import UNSET, Instant, Told, UnsetType


class Queue(Told):
    """A queue. It comes into being on first enqueue."""

    name: str
    created_at: Instant


class QueueList(Told):
    """Queues in the order of their names."""

    items: list[Queue]
    next_cursor: str | UnsetType = UNSET
