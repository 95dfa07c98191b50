"""Scopes that a call lacks, with client credentials: asked for once, and only what the authorization server grants."""

import asyncio
import time
from pathlib import Path

from support.brokers import ready
from support.oauth_world import World, world
from support.responses import succeeded
from support.waits import until, within

SECRET = "canary-client-secret-2f80"

AUTH = {
    "servers": {
        "notes": {
            "grant": "client_credentials",
            "issuer": "ISSUER",
            "client_id": "robot",
            "client_secret": SECRET,
            "scopes": ["notes"],
        }
    }
}

CLIENT = ("--client", f"robot:{SECRET}", "--client-scope")


def calling(tool: str) -> str:
    return f"""
        import {{ {tool} }} from "@codemode/servers/notes";
        try {{ globalThis.__codemode_result__ = await {tool}({{}}); }} catch (error) {{
            const {{ name, message, hint, certainty }} = error;
            globalThis.__codemode_result__ = {{ name, message, hint, certainty }};
        }}
    """


def asked(place: World) -> list[str]:
    """The scopes of each grant that was asked for."""
    return [event["scope"] for event in place.events("client credentials")]


async def test_a_token_that_is_too_narrow_is_widened_once(tmp_path: Path) -> None:
    """Calls at once ask once; what was widened stays wide when it is renewed; each call is made once."""
    options = (*CLIENT, "notes notes:write", "--life", "3")
    async with world(tmp_path, *options, auth=AUTH) as place, ready(place.settings) as broker:
        answers = await asyncio.gather(*(within(broker.run(calling("write"))) for _ in range(3)))
        assert [succeeded(answer) for answer in answers] == ["ada"] * 3
        # On a busy machine a token may expire, and be renewed, at any moment: the narrow one before it is widened.
        scopes = asked(place)
        narrow = scopes.index("notes notes:write")
        assert scopes[:narrow] == ["notes"] * narrow and narrow >= 1
        assert set(scopes[narrow:]) == {"notes notes:write"}
        granted = (place.folder / "ledger.jsonl").stat().st_mtime
        await until(lambda: time.time() > granted + 3.2, "the token has expired")
        before = len(asked(place))
        assert succeeded(await within(broker.run(calling("write")))) == "ada"
        assert set(asked(place)[before:]) == {"notes notes:write"}
    assert sum(event.get("tool") == "write" for event in place.events("call")) == 4


async def test_what_the_authorization_server_does_not_grant_is_said_and_not_asked_for_again(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, *CLIENT, "notes", auth=AUTH) as place:
        async with ready(place.settings) as broker:
            for _ in range(3):
                told = succeeded(await within(broker.run(calling("write"))))
                assert (told["name"], told["certainty"]) == ("AuthenticationError", "not_started")
                assert told["message"] == (
                    "notes refused write: HTTP 403; the login does not reach far enough (insufficient_scope: it "
                    "needs notes:write)."
                )
                assert told["hint"] == f"Have {place.issuer} grant notes:write to the client robot."
            assert succeeded(await within(broker.run(calling("whoami")))) == "ada", (
                "the token is as good as before"
            )
        assert asked(place) == ["notes", "notes notes:write"]
    assert not [event for event in place.events("call") if event["tool"] == "write"]
