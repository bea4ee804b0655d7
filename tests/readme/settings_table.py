"""The README's settings table as the code has it. `python -m tests.readme.settings_table` prints it."""

from pydantic_core import PydanticUndefined

from app.settings import Settings


def rows() -> list[str]:
    return [
        f"| `{_variable(name)}` | {_default(field.default)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]


def _variable(name: str) -> str:
    return "DATABASE_URL" if name == "database_url" else f"LONGSHORE_{name.upper()}"


def _default(value: object) -> str:
    assert value is not PydanticUndefined, "every setting has a default"
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    print("\n".join(rows()))
