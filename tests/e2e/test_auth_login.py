"""`cellblock auth` against a real authorization server, with a browser that follows redirects by itself; logins and
named secrets in a real Secret Service: a session bus and a GNOME keyring of the test's own; and a login in a real
browser, as a person does it on a narrow screen.
"""

import asyncio
import json
import os
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import WHERE_FROM, browser, browser_path
from support.commands import Said, cellblock, piped
from support.entries import CELLBLOCK, plain_server
from support.identity_provider import provider
from support.oauth_world import Site, World, site, team, world
from support.secret_service import needs_secret_service, secret_service
from support.waits import until, within


def login_file(place: World) -> Path:
    [file] = (place.state / "auth").glob("notes-*.json")
    return file


async def whoami(place: World, **environment: str) -> Said:
    """A run that asks the server whose login it has."""
    script = place.folder / "script.js"
    script.write_text(
        'import { whoami } from "@codemode/servers/notes"; globalThis.__codemode_result__ = await whoami({});'
    )
    return await place.run("run", str(script), **environment)


async def logs_in(place: World, **environment: str) -> Said:
    done = await place.run("auth", "login", "notes", **environment)
    assert done.code == 0, done.err
    return done


async def test_a_login_a_status_a_call_and_a_logout(tmp_path: Path) -> None:
    async with world(tmp_path) as place:
        none = await place.run("auth", "logout", "notes")
        assert (none.code, none.out) == (0, "There is no login of notes.\n")
        before = await place.run("auth", "status", "notes")
        assert (before.code, "cellblock auth login notes" in before.out) == (1, True), before
        refused = await whoami(place)
        assert refused.code == 1 and "HTTP 401; run: cellblock auth login notes" in refused.out
        assert not place.seen(), "only `auth login` opens a browser"

        done = await logs_in(place)
        [opened, last] = place.seen()
        assert f"{place.issuer}authorize?" in done.err and opened["opened"] in done.err
        assert "state/auth/notes-" in done.out
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
        run = await whoami(place, CELLBLOCK_LOG="DEBUG")
        assert (run.code, json.loads(run.out)["result"]) == (0, "ada"), run

        ended = await place.run("auth", "logout", "notes")
        assert (ended.code, "revoked and forgotten" in ended.out) == (0, True), ended
        assert len(place.events("revoke")) == 1 and not list((place.state / "auth").glob("*.json"))
        assert place.tokens()
        said = [done.out, done.err, status.out, run.out, run.err, ended.out, ended.err]
        assert not any(token in text for token in place.tokens() for text in said)


async def test_a_server_of_the_newest_revision_alone(tmp_path: Path) -> None:
    """It refuses the greeting of the others before it looks for a token."""
    async with world(tmp_path, "--modern-only") as place:
        await logs_in(place)
        run = await whoami(place)
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
        assert done.code == 3 and said in done.err and "Traceback" not in done.err
        assert not list(place.state.glob("auth/*.json"))
        if habit == "allow":
            assert not place.seen(), "no browser is sent anywhere"
        else:
            assert place.seen()[-1]["page"].count("The login was refused") == 1


async def test_another_state_than_ours_is_not_obeyed(tmp_path: Path) -> None:
    """Any page can send a browser to the listener: a forged answer neither logs in nor ends the login."""
    async with world(tmp_path) as place:
        await logs_in(place, habit="wrong-state")
        _, forged, rebound, last = place.seen()
        assert (forged["status"], rebound["status"], last["status"]) == (400, 404, 200)
        assert "belongs to no login" in forged["page"]

        done = await place.run("auth", "login", "notes", "--timeout", "3", habit="forged")
        assert done.code == 3 and "The browser has not come back within 3 s." in done.err
        status = await place.run("auth", "status", "notes")
        assert "logged in" in status.out, "a login that fails takes none away"


async def test_without_a_browser_only_the_url_is_said(tmp_path: Path) -> None:
    async with world(tmp_path) as place:
        done = await place.run("auth", "login", "notes", "--no-browser", "--timeout", "2")
        assert done.code == 3 and not place.seen()
        assert f"{place.issuer}authorize?response_type=code" in done.err
        assert "code_challenge_method=S256" in done.err


async def test_a_second_login_uses_the_client_that_is_registered(tmp_path: Path) -> None:
    async with world(tmp_path) as place:
        await place.log_in()
        await logs_in(place)
        assert (len(place.events("register")), len(place.events("code"))) == (1, 2)


@pytest.mark.thorough
@needs_secret_service
async def test_a_login_is_kept_renewed_and_forgotten_in_the_keyring(tmp_path: Path) -> None:
    async with (
        secret_service(tmp_path / "ring") as environment,
        world(tmp_path, "--life", "2", auth={"keyring": "auto"}) as place,
    ):
        assert "kept in the system's keyring" in (await logs_in(place, **environment)).out
        kept = list((place.state / "auth").iterdir())
        assert not [file for file in kept if any(token in file.read_text() for token in place.tokens())]
        for _ in range(2):
            run = await whoami(place, **environment)
            assert (run.code, json.loads(run.out)["result"]) == (0, "ada"), run
            granted = (tmp_path / "ledger.jsonl").stat().st_mtime
            await until(lambda granted=granted: time.time() > granted + 2.2, "the token has expired")
        assert place.events("refresh")
        assert (await place.run("auth", "logout", "notes", **environment)).code == 0
        [status] = json.loads((await place.run("auth", "status", "--json", **environment)).out)
        assert status["state"] != "logged in"


@pytest.mark.thorough
@needs_secret_service
async def test_a_secret_is_set_used_taken_over_when_it_changes_and_removed(tmp_path: Path) -> None:
    ring, file = tmp_path / "ring", tmp_path / "c.json"
    entry = {**plain_server(env={"TOKEN": "${keyring:MY_TOKEN}"}), "cwd": str(tmp_path)}
    state = {"state_dir": str(tmp_path / "s"), "pool": {"warm": 1}, "typecheck": "off"}
    file.write_text(json.dumps({"mcpServers": {"plain": entry}, "cellblock": state}))
    script = tmp_path / "script.js"
    script.write_text(
        'import { pid } from "@codemode/servers/plain"; globalThis.__codemode_result__ = await pid({});'
    )
    async with secret_service(ring) as environment:
        environment |= {"XDG_STATE_HOME": str(ring / "state"), "XDG_CONFIG_HOME": str(ring / "config")}

        async def run(*words: str, given: bytes | None = None) -> Said:
            return await cellblock(*words, given=given, program=CELLBLOCK, env={**os.environ, **environment})

        code, _, err = await run("run", str(script), "--config", str(file), "--require", "plain")
        assert code == 2 and "there is no secret MY_TOKEN" in err and "cellblock secret set MY_TOKEN" in err
        assert (await run("secret", "set", "MY_TOKEN", given=b"hunter2-\xc3\xa9\n"))[0] == 0
        listed = (await run("secret", "list", "--config", str(file))).out
        assert listed == f"MY_TOKEN  mcpServers.plain.env.TOKEN in {file}\n"
        assert not [one for one in ring.rglob("*") if one.is_file() and b"hunter2" in one.read_bytes()]

        # A daemon that runs follows the secret, and is ended by nothing that happens to it.
        words = ("serve", "--http", "127.0.0.1:0", "--no-auth", "--config", file)
        async with piped(*words, program=CELLBLOCK, env={**os.environ, **environment}) as daemon:
            told = daemon.process.stderr
            assert told is not None
            await _said(told, "serving")
            assert (await run("secret", "set", "MY_TOKEN", given=b"another"))[0] == 0
            await _said(told, "server plain has changed")
            code, _, err = await run("secret", "remove", "MY_TOKEN", "--config", str(file))
            assert (code, "still refers to MY_TOKEN: mcpServers.plain.env.TOKEN" in err) == (0, True), err
            await _said(told, "server plain goes on as it was: there is no secret MY_TOKEN")
    # Without any keyring a file has it, and that is said.
    environment |= {"DBUS_SESSION_BUS_ADDRESS": f"unix:path={tmp_path}/none"}
    code, out, err = await run("secret", "set", "MY_TOKEN", given=b"x")
    assert (code, "in encrypted files: there is no keyring" in out) == (0, True), err


async def _said(stream: asyncio.StreamReader, words: str) -> None:
    while words not in (line := (await within(stream.readline())).decode()):
        assert line, f"it has ended without: {words}"


if TYPE_CHECKING:
    from playwright.async_api import Page


BOUND_MS = 30_000


@pytest.fixture
async def page() -> AsyncIterator["Page"]:
    async with browser() as running:
        context = await running.new_context(viewport={"width": 390, "height": 800})
        context.set_default_timeout(BOUND_MS)
        yield await context.new_page()
        await context.close()


async def agreed(page: "Page", made: Site, person: str) -> None:
    """Says yes to the authorization server, on which the page's form has led to."""
    await page.wait_for_url(f"{made.place.issuer}consent?*", timeout=BOUND_MS)
    await page.click("#allow")
    await page.wait_for_url(f"{made.callback}?*", timeout=BOUND_MS)
    assert "is logged in to notes" in await page.inner_text("body")
    record = await made.login_of(person)
    assert record is not None and record.tokens is not None


@pytest.mark.thorough
@pytest.mark.skipif(browser_path() is None, reason=WHERE_FROM)
async def test_with_a_token(tmp_path: Path, page: "Page") -> None:
    async with site(tmp_path) as made:
        eve, said = await made.token("eve"), list[str]()
        page.on("console", lambda message: said.append(message.text))
        # As from a chat: of another site.
        await page.goto(f"data:text/html,<a href='{made.page}'>log in</a>")
        await page.click("a")
        await page.wait_for_url(made.page, timeout=BOUND_MS)
        assert await page.evaluate("document.documentElement.scrollWidth <= 390")
        await page.fill("input[name=token]", eve)
        await page.click("button")
        await agreed(page, made, "token:eve")
        assert not [text for text in said if "Content Security Policy" in text]


@pytest.mark.thorough
@pytest.mark.skipif(browser_path() is None, reason=WHERE_FROM)
async def test_with_an_identity_provider(tmp_path: Path, page: "Page") -> None:
    with provider() as idp:
        async with team(tmp_path, idp) as made:
            await page.goto(made.page)
            await page.click("button")
            await agreed(page, made, "oauth:ada")
