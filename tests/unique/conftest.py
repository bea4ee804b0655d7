"""Fixtures of other rooms that are needed here too."""

from tests.leases.conftest import expire
from tests.maintenance.conftest import retain

__all__ = ["expire", "retain"]
