"""Folders of an embedded Postgres: removed and flushed reliably."""

import os
import shutil
import time
from pathlib import Path


def remove_folder(folder: Path) -> None:
    """Retries, because the initdb of a killed owner may still write there for a moment. The next
    start removes the rest."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.02)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
