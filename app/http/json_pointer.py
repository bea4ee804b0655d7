"""JSON pointers (RFC 6901), which name the place of an error in a body or in a schema."""

EMPTY_NAME = '""'  # how errors show a name without characters


def escape_pointer_step(step: str | int) -> str:
    """Escapes one step of a JSON pointer."""
    return str(step).replace("~", "~0").replace("/", "~1")


def format_pointer(pointer: str) -> str:
    """Formats a JSON pointer for people: `/jobs/3/queue` becomes `jobs[3].queue`."""
    steps = pointer.split("/")[1:]
    return (
        "".join(f"[{step}]" if step.isdigit() else f".{step or EMPTY_NAME}" for step in steps).lstrip(".") or "the body"
    )
