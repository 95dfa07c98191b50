"""What a script and its reader are told: texts as they were, errors whole, the reason of a refused import."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cellblock import Broker
from support import plain_server, settings, succeeded, within


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    servers = {"plain": plain_server(), "broken": {"command": "cellblock-test-no-such-program"}}
    async with Broker(settings(tmp_path_factory.mktemp("told"), servers)) as started:
        await started.settled()
        yield started


async def test_a_script_can_make_errors_without_details(broker: Broker) -> None:
    code = """
        import * as errors from "@codemode/errors";
        globalThis.__codemode_result__ = Object.values(errors).map((one) => `${new one("msg")} ${new one().message}`);
    """
    made = succeeded(await within(broker.run(code)))
    assert len(made) == 7 and "ToolCallError: msg " in made
