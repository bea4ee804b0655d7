"""The example workers, each with the test's handler instead of the user's."""

import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from app.db.migrations import ROOT

# The handlers, by job type:
# echo             returns the payload
# fail             fails
# not_json         returns a value that JSON cannot represent
# wait             creates the file `<path>.started`, waits for `<path>.go`, returns {}
# until_cancelled  waits until the job is cancelled

PYTHON = """
def handle(job, cancelled):
    kind, payload = job["job_type"], job["payload"]
    if kind == "echo":
        return payload
    if kind == "fail":
        raise RuntimeError("no mailbox")
    if kind == "not_json":
        return {1, 2}
    if kind == "until_cancelled":
        cancelled.wait()
        raise RuntimeError("cancelled")
    open(payload + ".started", "w").close()
    while not os.path.exists(payload + ".go"):
        time.sleep(0.01)
    return {}
"""
NODE = """
async function handle(job, cancelled) {
  const { existsSync, writeFileSync } = await import("node:fs");
  if (job.job_type === "echo") return job.payload;
  class NoMailbox extends Error {}
  if (job.job_type === "fail") throw new NoMailbox("no mailbox");
  if (job.job_type === "not_json") return { answer: 42n };
  if (job.job_type === "until_cancelled") {
    while (!cancelled.aborted) await sleep(10);
    throw new Error("cancelled");
  }
  writeFileSync(job.payload + ".started", "");
  while (!existsSync(job.payload + ".go")) await sleep(10);
  return {};
}
"""
BASH = """
handle() {
  case $JOB_TYPE in
    echo) cat ;;
    fail) echo "no mailbox" >&2; return 1 ;;
    not_json) echo "this is not JSON" ;;
    until_cancelled) sleep 1000 ;;
    wait)
      path=$(tr -d '"')
      touch "$path.started"
      until [ -e "$path.go" ]; do sleep 0.05; done
      echo '{}' ;;
  esac
}
"""
README_HANDLER = f"{PYTHON}\ndef work(job):\n    return handle(job, None)\n"
PLACEHOLDER = re.compile(r"(?<=Yours: begin\n).*?(?=(?:#|//) Yours: end\n)", re.DOTALL)
README_PLACEHOLDER = re.compile(r"^def work\(job\):.*?\n(?=\n)", re.DOTALL | re.MULTILINE)


class Example(NamedTuple):
    file: str
    program: str
    handler: str
    error_type: str
    placeholder: "re.Pattern[str]" = PLACEHOLDER
    stops_cancelled_jobs: bool = True

    def command(self, folder: Path) -> list[str]:
        """Returns the command by which a user runs a copy of the worker.

        A machine without the program fails the test: the documentation says that tests need it."""
        program = shutil.which(self.program)
        assert program is not None, f"{self.program} is not on the PATH: `make test` needs it for {self.file}"
        text, count = self.placeholder.subn(lambda _: self.handler, self._text())
        assert count == 1, f"{self.file} must have exactly one place for the user's handler"
        copy = folder / self.file
        copy.write_text(text)
        return [program, str(copy)]

    def _text(self) -> str:
        if self.file != "README.md":
            return (ROOT / "examples" / self.file).read_text()
        section = (ROOT / "README.md").read_text().partition("\n## A worker\n")[2]
        return section.partition("```python\n")[2].partition("```")[0]


EXAMPLES = [
    Example(
        "README.md", sys.executable, README_HANDLER, "RuntimeError", README_PLACEHOLDER, stops_cancelled_jobs=False
    ),
    Example("worker.py", "python3", PYTHON, "RuntimeError"),
    Example("worker.mjs", "node", NODE, "NoMailbox"),
    Example("worker.sh", "bash", BASH, "exit_1"),
]
