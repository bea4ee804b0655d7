"""The size of a regular expression with its repetitions written out. Pure.

jsonschema-rs matches without backtracking, in time proportional to the length of the text times
this size.
"""

import re

_PIECE = re.compile(
    r"""
      (?P<atom> \\[pPu]\{[^}]*+(?:\}|\Z) | \\u[0-9a-fA-F]{4} | \\x[0-9a-fA-F]{2} | \\. | \[(?:\\.|[^\]\\])*+(?:\]|\Z) )
    | \{(?P<min_count>\d{1,9})(?:,(?P<max_count>\d{0,9}))?\}
    | (?P<open> \((?:\?(?:[:=!]|<[=!]|P?<\w{1,80}>))? )
    | (?P<close> \) )
    | (?P<alternative> \| )
    | (?P<repeat> [*+?] )
    | (?P<plain> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def regex_size(pattern: str) -> int:
    """Counts the characters of the pattern, each times its maximum repetitions.

    `(ab{3}){2}|c` has nine. Unbounded repetitions count once.
    """
    groups, last = [0], 0
    for piece in _PIECE.finditer(pattern):
        match piece.lastgroup:
            case "open":
                groups.append(0)
            case "close" if len(groups) > 1:
                last = groups.pop()
                groups[-1] += last
            case "min_count" | "max_count":
                times = max(1, int(piece["min_count"]), int(piece["max_count"] or 0))
                groups[-1] += last * (times - 1)
                last *= times
            case "repeat" | "alternative":
                pass
            case _:
                groups[-1] += 1
                last = 1
    return sum(groups)
