"""Brokers and their tables follow the model in any order of calls and of time."""

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.concurrency.model.brokers import BrokerPair
from tests.concurrency.model.state_machine import LeaseStateMachine


def test_brokers_follow_the_lease_model(brokers: BrokerPair, run_settings: settings) -> None:
    run_state_machine_as_test(lambda: LeaseStateMachine(brokers), settings=run_settings)  # type: ignore[arg-type]
