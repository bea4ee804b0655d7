"""README.md and the pages under docs: their text, their code blocks, and a shell that runs these."""

import re
import subprocess

from tests.contract.cli.command import environment
from tests.paths import ROOT

README = "README.md"
QUICKSTART = "docs/quickstart.md"
PAGES = [
    README,
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "bench/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_STRICT = 'set -eu -o pipefail\ncurl() { command curl --fail-with-body -w "\\n" "$@"; }\n'


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def code(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language, in their order."""
    return [block for name, block in _BLOCK.findall(text_of(page)) if name == language]


def prose(page: str) -> str:
    """The page without its code blocks."""
    return _BLOCK.sub("", text_of(page))


def anchors(page: str) -> set[str]:
    """The fragments that links to a page may have: its headings as GitHub names them, and explicit ids."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {*names, *re.findall(r'<a id="([^"]+)"></a>', text_of(page))}


def set_up_terminal() -> str:
    """The first block of the quickstart, which defines `API` and `field` for all other pages."""
    return code(QUICKSTART, "bash")[0]


def run_bash(base_url: str, *blocks: str, **variables: str) -> str:
    """Returns what the blocks print.

    Fails at the first command that fails; a response with a status of 400 or more is a failure.
    """
    done = subprocess.run(
        ["bash", "-c", _STRICT + "\n".join(blocks)],
        env=environment(API=base_url, **variables),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
