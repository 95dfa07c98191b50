"""One broker and one agent for the whole folder: every run has a fresh sandbox, so tests cannot meet there.

Tests that change a server's tools bring a broker of their own.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Broker
from conformance.world import LOCAL_TOOLS, Agent, agent_with, broker_with, contract_server
from support.entries import plain_server


@pytest.fixture(scope="package")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `contract.jsonl` and `plain.jsonl` tell what their servers were asked."""
    return tmp_path_factory.mktemp("ledgers")


@pytest.fixture(scope="package")
def frontend(request: pytest.FixtureRequest) -> dict[str, str]:
    """The section `frontend`: as configured by default, or strict with `--strict-frontend`."""
    return {"profile": "strict" if request.config.getoption("--strict-frontend") else "default"}


@pytest.fixture(scope="package")
async def broker(
    tmp_path_factory: pytest.TempPathFactory, ledgers: Path, frontend: dict[str, str]
) -> AsyncIterator[Broker]:
    """A broker with the servers `contract`, `plain` and `local`."""
    servers = {
        "contract": contract_server("--ledger", ledgers / "contract.jsonl"),
        "plain": plain_server("--ledger", ledgers / "plain.jsonl"),
    }
    async with broker_with(
        tmp_path_factory.mktemp("broker"),
        servers,
        tools=LOCAL_TOOLS,
        frontend=frontend,
        # What is found of one test's script does not come with another's response.
        typecheck_timeout_ms=10_000,
    ) as made:
        assert list(made.catalog.servers) == ["contract", "plain", "local"], made.catalog.unavailable
        yield made


@pytest.fixture(scope="package")
async def agent(
    tmp_path_factory: pytest.TempPathFactory, ledgers: Path, frontend: dict[str, str]
) -> AsyncIterator[Agent]:
    """An agent with the servers `contract` and `plain`, and `broken`, which cannot be started."""
    servers = {
        "contract": contract_server("--ledger", ledgers / "contract.jsonl"),
        "plain": plain_server("--ledger", ledgers / "plain.jsonl"),
        "broken": {"command": "cellblock-test-no-such-program"},
    }
    async with agent_with(tmp_path_factory.mktemp("agent"), servers, frontend=frontend) as made:
        yield made
