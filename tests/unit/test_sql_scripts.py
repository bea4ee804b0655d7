"""A script is split at the semicolons between its statements, and at no others."""

from app.db.migrations import ROOT
from app.db.sql_scripts import split_script
from tests.table import table


@table(
    ("script", "statements"),
    [
        ("", []),
        ("-- only; a comment\n", []),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1; SELECT 2;\n", ["SELECT 1;", "SELECT 2;"]),
        ("-- a; b\nSELECT 1;", ["-- a; b\nSELECT 1;"]),
        ("/* a; b */ SELECT 1; /* c; */", ["/* a; b */ SELECT 1;"]),
        ("SELECT '; '''; SELECT ''", ["SELECT '; ''';", "SELECT ''"]),
        (r"SELECT '\'; SELECT 2", [r"SELECT '\';", "SELECT 2"]),
        (r"SELECT E'\';'; SELECT 2", [r"SELECT E'\';';", "SELECT 2"]),
        ('SELECT 1 AS "a;""b"; SELECT 2', ['SELECT 1 AS "a;""b";', "SELECT 2"]),
        ("SELECT '-- '; SELECT 2 -- '; '\n;", ["SELECT '-- ';", "SELECT 2 -- '; '\n;"]),
        ("DO $$ BEGIN NULL; END $$; SELECT 1", ["DO $$ BEGIN NULL; END $$;", "SELECT 1"]),
        ("DO $a$ x; $$; ' $a$; SELECT 1", ["DO $a$ x; $$; ' $a$;", "SELECT 1"]),
        ("SELECT $1; SELECT a$$b; SELECT 2", ["SELECT $1;", "SELECT a$$b;", "SELECT 2"]),
    ],
)
def test_script_is_split_between_statements(script: str, statements: list[str]) -> None:
    assert list(split_script(script)) == statements


def test_migrations_are_split_into_whole_statements() -> None:
    """Every statement begins with a keyword, so none begins in the middle of a function."""
    scripts = sorted((ROOT / "alembic" / "versions").glob("*.sql"))
    assert scripts
    keywords = {first_word(statement) for script in scripts for statement in split_script(script.read_text())}
    assert keywords <= {"ALTER", "CREATE", "DO", "DROP", "GRANT", "INSERT", "REVOKE", "SELECT", "UPDATE"}


def first_word(statement: str) -> str:
    lines = [line for line in statement.splitlines() if line and not line.startswith("--")]
    return lines[0].split()[0]
