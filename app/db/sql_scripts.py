"""Splits SQL scripts into their statements, so that each can be sent alone.

Citus rejects most changes of distributed tables that are sent together with other statements, and
CREATE INDEX CONCURRENTLY cannot run in the implicit transaction of several statements.
"""

import re
from collections.abc import Iterator

# A semicolon ends a statement, except in a comment, a string, a quoted name or a $$ body. A block
# comment must not contain another.
_TOKEN = re.compile(
    r"""
      --[^\n]*
    | /\*.*?\*/
    | \b[Ee]'(?:[^'\\]|\\.|'')*'
    | '(?:[^']|'')*'
    | "(?:[^"]|"")*"
    | (?<![\w$])(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?P=tag)
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/|\s", re.DOTALL)


def split_script(script: str) -> Iterator[str]:
    """Yields the statements of a script, with the comments before them, in order."""
    ends = [token.end() for token in _TOKEN.finditer(script) if token["end"]]
    for start, end in zip([0, *ends], [*ends, len(script)], strict=True):
        statement = script[start:end]
        if _COMMENT.sub("", statement):
            yield statement.strip()
