"""Whatever workers, producers, operators and time do, in any order: brokers answer as the model foretells, and the tables say the same."""

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.brokers import Table
from tests.model.machine import Leases


def test_brokers_keep_the_lease_protocol(table: Table, effort: settings) -> None:
    run_state_machine_as_test(lambda: Leases(table), settings=effort)  # type: ignore[arg-type]
