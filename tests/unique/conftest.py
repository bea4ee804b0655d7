"""Fixtures of other test packages."""

from tests.leases.conftest import expire
from tests.maintenance.conftest import run_retention

__all__ = ["expire", "run_retention"]
