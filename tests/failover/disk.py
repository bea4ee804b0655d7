"""A disk of a test's own: small, and with a plug that can be pulled. Needs root, a loop device and mkfs.ext4."""

import fcntl
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# From the kernel's headers: the file system takes no more writes, and what was not flushed, its journal too, is gone (xfstests' godown).
FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("=I", 2)


class Disk:
    def __init__(self, folder: Path, megabytes: int) -> None:
        self._image = folder / "image"
        self.mounted = folder / "mounted"
        self.mounted.mkdir()
        with self._image.open("wb") as image:
            image.truncate(megabytes * 2**20)
        run("mkfs.ext4", "-q", "-F", "-m", "0", self._image)
        self.mount()
        self.mounted.chmod(0o711)

    def mount(self) -> None:
        run("mount", "-o", "loop", self._image, self.mounted)

    def cut_power(self) -> None:
        """Everything that is only in memory is lost, from one moment to the next."""
        handle = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, FS_IOC_SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(handle)

    def unmount(self) -> None:
        run("umount", self.mounted)

    def flush(self) -> None:
        run("sync", "-f", self.mounted)

    def fill(self) -> None:
        """Until nothing more fits."""
        with (self.mounted / "filler").open("wb", buffering=0) as filler:
            for size in (2**20, 2**12):
                _write_until_full(filler.fileno(), size)

    def free_space(self) -> None:
        (self.mounted / "filler").unlink()


def _write_until_full(handle: int, size: int) -> None:
    try:
        while True:
            os.write(handle, bytes(size))
    except OSError:
        return


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def mounted_disk(megabytes: int) -> Iterator[Disk]:
    with tempfile.TemporaryDirectory(prefix="lsd-") as folder:
        Path(folder).chmod(0o711)
        made = Disk(Path(folder), megabytes)
        try:
            yield made
        finally:
            made.unmount()


def can_mount() -> bool:
    """Asked by trying: containers have root and no right to mount."""
    try:
        with mounted_disk(1) as tried:
            tried.cut_power()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


IS_AVAILABLE = can_mount()
