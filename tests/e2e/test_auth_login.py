"""`cellblock auth` against a real authorization server, with a browser that follows redirects by itself."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from support.oauth_world import World, world


def login_file(place: World) -> Path:
    [file] = (place.state / "auth").glob("notes-*.json")
    return file


def without_tokens(place: World, *texts: str) -> bool:
    return not any(token in text for token in place.tokens() for text in texts)


async def test_a_login_a_status_a_call_and_a_logout(tmp_path: Path) -> None:
    async with world(tmp_path) as place:
        before = await place.run("auth", "status", "notes")
        assert (before.code, "cellblock auth login notes" in before.out) == (1, True), before
        script = tmp_path / "script.js"
        script.write_text(
            'import { whoami } from "@codemode/servers/notes"; globalThis.__codemode_result__ = await whoami({});'
        )
        refused = await place.run("run", str(script))
        assert refused.code == 1
        assert "HTTP 401; run: cellblock auth login notes" in refused.out
        assert not place.seen(), "only `auth login` opens a browser"

        done = await place.run("auth", "login", "notes")
        assert done.code == 0, done.err
        assert f"{place.issuer}authorize?" in done.err
        assert "state/auth/notes-" in done.out
        [opened, last] = place.seen()
        assert opened["opened"] in done.err
        assert opened["told"].startswith(place.state.as_uri()) and not list(place.state.glob("*.html"))
        assert (last["status"], "close this page" in last["page"]) == (200, True)
        assert stat.S_IMODE(login_file(place).stat().st_mode) == 0o600
        assert stat.S_IMODE(login_file(place).parent.stat().st_mode) == 0o700
        [asked] = place.events("authorize")
        assert asked["resource"] == place.url, "RFC 8707: the token is for this server"
        assert [event["resource"] for event in place.events("code")] == [place.url]

        status = await place.run("auth", "status", "notes")
        assert (status.code, "logged in" in status.out, place.issuer in status.out) == (0, True, True), status
        [found] = json.loads((await place.run("auth", "status", "--json")).out)
        assert (found["state"], found["kept"], found["renewable"]) == ("logged in", "file", True)
        assert 0 < found["expiresInSeconds"] <= 600
        run = await place.run("run", str(script), CELLBLOCK_LOG="DEBUG")
        assert run.code == 0, run.out
        assert json.loads(run.out)["result"] == "ada"

        ended = await place.run("auth", "logout", "notes")
        assert (ended.code, "revoked and forgotten" in ended.out) == (0, True), ended
        assert len(place.events("revoke")) == 1
        assert not list((place.state / "auth").glob("*.json"))
        assert place.tokens()
        said = [done.out, done.err, status.out, run.out, run.err, ended.out, ended.err]
        assert without_tokens(place, *said)


async def test_a_server_of_the_newest_revision_alone(tmp_path: Path) -> None:
    """It refuses the greeting of the others before it looks for a token."""
    async with world(tmp_path, "--modern-only") as place:
        done = await place.run("auth", "login", "notes")
        assert done.code == 0, done.err
        script = tmp_path / "script.js"
        script.write_text(
            'import { whoami } from "@codemode/servers/notes"; globalThis.__codemode_result__ = await whoami({});'
        )
        run = await place.run("run", str(script))
        assert (run.code, json.loads(run.out)["result"]) == (0, "ada"), run


@pytest.mark.parametrize(
    ("options", "auth", "habit", "said"),
    [
        pytest.param(
            (), {}, "deny", "The login was denied. Log in again, and agree.\n", id="consent is denied"
        ),
        pytest.param(
            ("--no-registration",), {}, "allow", "a client_id is needed", id="clients are not registered"
        ),
        # RFC 8414, section 3.3: otherwise one server could take codes that are meant for another.
        pytest.param(("--wrong-issuer",), {}, "allow", "failed", id="metadata of another issuer"),
        pytest.param(
            (),
            {"servers": {"notes": {"issuer": "https://login.example/"}}},
            "allow",
            "another authorization server than https://login.example/",
            id="not the configured issuer",
        ),
    ],
)
async def test_a_login_that_fails_says_why(
    tmp_path: Path, options: tuple[str, ...], auth: dict[str, Any], habit: str, said: str
) -> None:
    async with world(tmp_path, *options, auth=auth) as place:
        done = await place.run("auth", "login", "notes", habit=habit)
        assert done.code == 3
        assert said in done.err and "Traceback" not in done.err
        assert not list(place.state.glob("auth/*.json"))
        if habit == "allow":
            assert not place.seen(), "no browser is sent anywhere"
        else:
            assert place.seen()[-1]["page"].count("The login was refused") == 1


async def test_another_state_than_ours_is_not_obeyed(tmp_path: Path) -> None:
    """Any page can send a browser to the listener: a forged answer neither logs in nor ends the login."""
    async with world(tmp_path) as place:
        done = await place.run("auth", "login", "notes", habit="wrong-state")
        assert done.code == 0, done.err
        _, forged, rebound, last = place.seen()
        assert (forged["status"], rebound["status"], last["status"]) == (400, 404, 200)
        assert "belongs to no login" in forged["page"]

        done = await place.run("auth", "login", "notes", "--timeout", "3", habit="forged")
        assert done.code == 3
        assert "The browser has not come back within 3 s." in done.err
        status = await place.run("auth", "status", "notes")
        assert "logged in" in status.out, "a login that fails takes none away"


async def test_without_a_browser_only_the_url_is_said(tmp_path: Path) -> None:
    async with world(tmp_path) as place:
        done = await place.run("auth", "login", "notes", "--no-browser", "--timeout", "2")
        assert done.code == 3
        assert f"{place.issuer}authorize?response_type=code" in done.err
        assert "code_challenge_method=S256" in done.err
        assert not place.seen()


async def test_a_second_login_uses_the_client_that_is_registered(tmp_path: Path) -> None:
    async with world(tmp_path) as place:
        await place.log_in()
        assert (await place.run("auth", "login", "notes")).code == 0
        assert len(place.events("register")) == 1
        assert len(place.events("code")) == 2


async def test_servers_that_cannot_be_logged_in_to(tmp_path: Path) -> None:
    async with world(tmp_path) as place:
        unknown = await place.run("auth", "login", "nodes")
        assert (unknown.code, "Servers: notes." in unknown.err) == (2, True), unknown
        none = await place.run("auth", "logout", "notes")
        assert (none.code, none.out) == (0, "There is no login of notes.\n")
