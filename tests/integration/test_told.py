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


@pytest.mark.parametrize(
    ("server", "says"),
    [("broken", "not connected"), ("nix", "no such server"), ("x" * 5000, "no such server")],
)
async def test_a_computed_import_of_a_server_that_is_not_there(
    broker: Broker, server: str, says: str
) -> None:
    code = f"""
        import {{ ServerNotFoundError }} from "@codemode/errors";
        try {{ await import(`@codemode/servers/${{"{server}"}}`); }} catch (error) {{
            const {{ message, hint, serverId }} = error;
            globalThis.__codemode_result__ = [error instanceof ServerNotFoundError, message, hint, serverId];
        }}
    """
    right, message, hint, server_id = succeeded(await within(broker.run(code)))
    assert right and says in message and len(message) < 500
    assert server.startswith(server_id.removesuffix("…"))
    assert hint == "Connected servers: plain." if server != "broken" else hint


async def test_a_script_can_make_errors_without_details(broker: Broker) -> None:
    code = """
        import * as errors from "@codemode/errors";
        globalThis.__codemode_result__ = Object.values(errors).map((one) => `${new one("msg")} ${new one().message}`);
    """
    made = succeeded(await within(broker.run(code)))
    assert len(made) == 7 and "ToolCallError: msg " in made


async def test_half_a_character_in_a_result_is_told(broker: Broker) -> None:
    code = "globalThis.__codemode_result__ = { cut: ['fine', '😀'.slice(0, 1)], text: '\\\\ud83d' };"
    response = await within(broker.run(code))
    assert response.result == {"cut": ["fine", "\ufffd"], "text": "\\ud83d"}
    (warning,) = response.diagnostics
    assert (warning.code, warning.path) == ("RESULT_NOT_JSON", "/cut/1")
    assert "surrogate" in warning.message
