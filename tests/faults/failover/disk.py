"""A small disk for one test, whose power can be cut. Needs root, a loop device and mkfs.ext4."""

import fcntl
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# From the kernel's headers: the file system accepts no more writes, and data that was not flushed,
# including its journal, is lost (as in xfstests' godown).
FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("=I", 2)


class Disk:
    """An ext4 file system in an image file."""

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
        """Discards everything that is only in memory."""
        descriptor = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        run("umount", self.mounted)

    def flush(self) -> None:
        run("sync", "-f", self.mounted)

    def fill(self) -> None:
        """Writes until the disk is full."""
        with (self.mounted / "filler").open("wb", buffering=0) as filler:
            for size in (2**20, 2**12):
                _write_until_full(filler.fileno(), size)

    def free_space(self) -> None:
        (self.mounted / "filler").unlink()


def _write_until_full(descriptor: int, size: int) -> None:
    try:
        while True:
            os.write(descriptor, bytes(size))
    except OSError:
        return


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def mounted_disk(megabytes: int) -> Iterator[Disk]:
    with tempfile.TemporaryDirectory(prefix="lsd-") as folder:
        Path(folder).chmod(0o711)
        new_disk = Disk(Path(folder), megabytes)
        try:
            yield new_disk
        finally:
            new_disk.unmount()


def can_mount() -> bool:
    """Whether this process can mount disks.

    Tries it, because containers have root without the privilege to mount.
    """
    try:
        with mounted_disk(1) as trial:
            trial.cut_power()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


IS_AVAILABLE = can_mount()
