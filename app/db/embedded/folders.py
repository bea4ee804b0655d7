"""Removes and flushes folders of an embedded Postgres."""

import os
import shutil
import time
from pathlib import Path


def remove_folder(folder: Path) -> None:
    """Removes a folder. Retries for two seconds, because the initdb of a killed broker may still be
    writing into the folder. If the retries fail, the next start removes the rest."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.02)


def sync_folder(folder: Path) -> None:
    """Flushes the entries of a folder to disk, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
