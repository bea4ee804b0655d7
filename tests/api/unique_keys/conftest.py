"""Fixtures of other test packages."""

from tests.api.leases.conftest import expire
from tests.api.maintenance.conftest import run_retention

__all__ = ["expire", "run_retention"]
