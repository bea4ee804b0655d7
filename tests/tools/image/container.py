"""A container without a container engine: the image's root file system mounted read-only, the
image's user, no capabilities, `/tmp` in memory.

An engine would add a separate network, limits of memory and processes, and a seccomp profile."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.tools.image.base import Builder

SOCKETS = "/tmp/postgres"  # the folder with the database's socket, inside the container

# All mounts exist in a mount namespace of this process only.
ENTER = """
set -e
mount --make-rprivate /
root=$1 user=$2 folder=$3 sockets=$4
shift 4
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$root/tmp"
mkdir "$root/tmp/postgres"
mount --bind "$sockets" "$root/tmp/postgres"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
exec chroot "$root" setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups \\
    --no-new-privs --bounding-set=-all --inh-caps=-all env --chdir="$folder" "$@"
"""


class Container:
    """Runs commands with the image's configuration."""

    def __init__(self, *, root: Path, config: dict[str, Any], sockets: Path) -> None:
        self._root = root
        self._config = config
        self._sockets = sockets

    def size(self, *folders: str) -> int:
        files = (path for folder in folders for path in (self._root / folder.lstrip("/")).rglob("*"))
        return sum(path.lstat().st_size for path in files)

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """Starts the image's entrypoint with these arguments; without arguments, with the
        image's command."""
        return self._start([*self._config["Entrypoint"], *(arguments or self._config["Cmd"])], environment)

    def run(self, *arguments: str, **environment: str) -> str:
        return self._result(self.start(*arguments, **environment))

    def execute(self, command: list[str], **environment: str) -> str:
        """Runs any command instead of the entrypoint, as `docker exec` does."""
        return self._result(self._start(command, environment))

    def check_health(self, **environment: str) -> str:
        kind, *command = self._config["Healthcheck"]["Test"]
        assert kind == "CMD", f"the health check is {kind}, not a command without a shell"
        return self.execute(command, **environment)

    def _start(self, command: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
        variables = [*self._config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        parameters = [str(self._root), self._config["User"], self._config["WorkingDir"], str(self._sockets)]
        enter = ["unshare", "--mount", "sh", "-c", ENTER, "enter", *parameters]
        return subprocess.Popen(
            [*enter, "--ignore-environment", *variables, *command],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @staticmethod
    def _result(process: "subprocess.Popen[str]") -> str:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, f"exit status {process.returncode}: {output}{errors}"
        return output.strip()


@contextmanager
def mounted(buildah: Builder, image: str, *, config: dict[str, Any], sockets: Path) -> Iterator[Container]:
    container = buildah("from", "--pull-never", image)
    try:
        yield Container(root=Path(buildah("mount", container)), config=config, sockets=sockets)
    finally:
        buildah("rm", container)
