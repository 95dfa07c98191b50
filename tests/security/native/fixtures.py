"""Fixtures of the native attacker, for every folder of tests."""

from collections.abc import Iterator

import pytest

from security.native.harness import Native, built_or_skipped, in_this_process


@pytest.fixture(scope="session")
def native_built(tmp_path_factory: pytest.TempPathFactory) -> Native:
    """The built attacker; half a second, once."""
    return built_or_skipped(tmp_path_factory.mktemp("native"))


@pytest.fixture
def native(native_built: Native) -> Native:
    """The attacker, which takes all workers, whatever the test before has left."""
    native_built.takes(100)
    return native_built


@pytest.fixture
def native_workers(native: Native) -> Iterator[Native]:
    """Workers of this very process are the attacker, inside every layer (`harness.attack`)."""
    with in_this_process(native):
        yield native


@pytest.fixture
def native_hosts(native: Native, monkeypatch: pytest.MonkeyPatch) -> Native:
    """Workers of the hosts of brokers that start now are the attacker, or some of them (`Native.takes`)."""
    monkeypatch.setenv("PYTHONPATH", native.environment())
    return native
