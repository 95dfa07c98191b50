"""Everybody's own logins, with an authorization server that is not ours.

Campaigns: people run scripts at two brokers and log in and out, their tokens live for seconds, and brokers are killed.
The authorization server is `oidc-provider`; the MCP server writes down whose each call is."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from cellblock.base.settings.server import AuthSettings
from cellblock.base.settings.state import JournalSettings
from cellblock.base.store import LocalStore, Store
from cellblock.fleet.postgresql import PostgresServer
from cellblock.record.journals import open_store
from cellblock.run.policy.named_tokens import NamedTokens
from cellblock.tools.upstream.auth.login import log_out
from cellblock.tools.upstream.auth.store import LoginStore
from cellblock.tools.upstream.session import LOGIN_ENDED
from support.entries import SERVERS, forked_server, ledger
from support.http_daemon import TOOL, Daemon, daemon
from support.oauth_world import Browser
from support.processes import alive, gone, owned_process
from support.public_servers import NODE, require
from support.shared_rows import KEY, state_of
from support.waits import until, until_found, within

pytestmark = [pytest.mark.servers, pytest.mark.timeout(1200)]


TOKEN_SECONDS: Final = 3

RUNNERS: Final = 2
"""Sets the runs at once of one person."""

SETTINGS: Final = AuthSettings(keyring="off")

SCRIPT: Final = """
    import {{ whoami }} from "@codemode/servers/notes";
    const first = await whoami({{ said: "{tag}" }});
    const others = await Promise.all([whoami({{ said: "{tag}" }}), whoami({{ said: "{tag}" }})]);
    export default [first, ...others].join(" ");
"""


@dataclass
class Person:
    """What is true of one person's login."""

    name: str
    token: str
    is_in: bool | None = None
    """Says whether there is a login; None while it comes or goes."""

    changes: int = 0


@dataclass
class Place:
    """One of the two brokers."""

    number: int
    daemon: Daemon | None = None
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    deaths: int = 0
    has_listed: bool = False
    """Whether anybody's session there has listed the tools, which all may know then."""


class Campaign:
    """Runs it.

    Args:
        folder: For all that it writes.
        runs: How many.
        seed: Of its chances.
        state: The section `state`, and the store of it; None: the files of the folder.
    """

    def __init__(
        self, folder: Path, runs: int, seed: int, state: tuple[dict[str, Any], Store] | None = None
    ) -> None:
        self.folder, self.left, self.chance = folder, runs, random.Random(seed)
        self.section = {"state": state[0]} if state is not None else {}
        self.store: Store = state[1] if state is not None else LocalStore(folder / "s")
        self.places = [Place(0), Place(1)]
        self.people: list[Person] = []
        self.parked: list[str] = []
        self.wrong: list[str] = []
        self.counts = Counter[str]()
        self.ledger, self.url = folder / "calls.jsonl", ""

    async def run(self, kills: int) -> None:
        """Makes the runs, kills a broker so many times meanwhile, and waits for what is parked."""
        async with self._servers(), contextlib.AsyncExitStack() as stack:
            for place in self.places:
                await self._start(place)
                stack.push_async_callback(lambda place=place: place.stack.aclose())
            tokens = NamedTokens(self.store)
            self.people = [
                Person(name, await asyncio.to_thread(tokens.create, name))
                for name in ("alice", "bob", "carol")
            ]
            for person in self.people:
                await self._log_in(person)
            runners = [self._runs(person) for person in self.people for _ in range(RUNNERS)]
            working = asyncio.gather(*runners)
            beside = [asyncio.create_task(self._goes_and_comes(person)) for person in self.people]
            killing = asyncio.create_task(self._kills(kills, self.left))
            try:
                await working
                await killing
            finally:
                working.cancel()
                for task in (killing, *beside):
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)
            for person in self.people:
                if not person.is_in:
                    await self._log_in(person)
            await until_found(self._none_waits, "every run that was parked has ended", 120)
        self._judge()

    # ---- what happens ------------------------------------------------------------------------------------

    async def _runs(self, person: Person) -> None:
        while self.left > 0:
            self.left -= 1
            number, durable = self.left, self.chance.random() < 0.5
            place = self.chance.choice([place for place in self.places if place.daemon is not None])
            before = person.is_in, person.changes, place.deaths
            # Of a server whose tools are not known nothing can be called, and no login is asked for.
            can_park = durable and place.has_listed
            tag = f"{person.name} {number}"
            try:
                response = await within(self._response(place, person, tag, durable), 100)
            except Exception as error:  # noqa: BLE001 - whatever a client raises whose broker is killed
                if place.deaths == before[2]:
                    self.wrong.append(f"{tag}: {error!r}")
                self.counts["cut off"] += 1
                continue
            is_sure = before == (person.is_in, person.changes, place.deaths) and person.is_in is not None
            self._look(place, person, tag, response, can_park, is_sure)

    def _look(
        self, place: Place, person: Person, tag: str, response: Any, can_park: bool, is_sure: bool
    ) -> None:
        codes = [one["code"] for one in response["diagnostics"]]
        if response["result"] is not None and not codes:
            self.counts["ended well"] += 1
            place.has_listed = True
            if response["result"] != " ".join([person.name] * 3):
                self.wrong.append(f"{tag}: it was called as {response['result']}")
            if is_sure and not person.is_in:
                self.wrong.append(f"{tag}: called without a login")
            return
        is_parked = "RUN_PARKED" in codes
        self.counts["parked" if is_parked else f"failed: {codes}"] += 1
        if is_parked:
            self.parked.append(tag)
        if is_sure and person.is_in:
            self.wrong.append(f"{tag}: it had a login, and {response['diagnostics']}")
        elif is_sure and can_park and not is_parked and LOGIN_ENDED not in str(response["diagnostics"]):
            self.wrong.append(f"{tag}: it had no login, and was not parked: {response['diagnostics']}")

    async def _response(self, place: Place, person: Person, tag: str, durable: bool) -> Any:
        asked = {"code": SCRIPT.format(tag=tag), "durable": durable}
        async with replace(place.daemon, token=person.token).client() as client:
            return (await client.call_tool(TOOL, asked)).structured_content

    async def _goes_and_comes(self, person: Person) -> None:
        while True:
            await asyncio.sleep(self.chance.uniform(1, 6))
            await self._log_out(person)
            await asyncio.sleep(self.chance.uniform(0, 3))
            await self._log_in(person)

    async def _log_out(self, person: Person) -> None:
        person.changes += 1
        person.is_in = None
        mine = LoginStore(self.store, "notes", self.url, SETTINGS, person=f"token:{person.name}")
        said = await log_out(mine, person.name)
        self.counts["logouts"] += 1
        if "revoked and forgotten" not in said:
            self.counts[said] += 1
        # Where brokers share it in PostgreSQL, each knows it within two seconds.
        await asyncio.sleep(2.5 if self.store.is_shared else 0)
        person.is_in = False

    async def _log_in(self, person: Person) -> None:
        """Logs in at the page of one broker; the redirect comes to either."""
        person.changes += 1
        person.is_in = None

        async def is_in() -> bool:
            return await self._has_logged_in(person) and await self._all_know(person)

        await until_found(is_in, f"{person.name} is logged in", 90, pause=1)
        self.counts["logins"] += 1
        person.is_in = True

    async def _has_logged_in(self, person: Person) -> bool:
        browser = Browser()
        browser.http.headers["X-Person"] = person.name
        try:
            ports = [place.daemon.port for place in self.places if place.daemon is not None]
            begins, ends = self.chance.choice(ports), self.chance.choice(ports)
            origin = f"http://127.0.0.1:{begins}"
            page = await browser.post(f"{origin}/login/notes", {"token": person.token})
            page = await browser.followed(page, until=f"{origin}/login/callback")
            if browser.way:
                page = await browser.get(browser.way[-1].replace(f":{begins}/", f":{ends}/", 1))
            if page.status_code == 200 and f"token:{person.name} is logged in to notes" in page.text:
                return True
            self.counts[f"login: {page.status_code} {page.text[-200:]}"] += 1
        except Exception as error:  # noqa: BLE001 - a broker that is killed, or a redirect without a way
            self.counts[f"login: {type(error).__name__}"] += 1
        finally:
            await browser.http.aclose()
        return False

    async def _all_know(self, person: Person) -> bool:
        async def knows(place: Place) -> bool:
            if place.daemon is None:
                return True
            # A client whose broker is killed may wait for ever.
            response = await within(self._response(place, person, f"{person.name} look", durable=False), 30)
            if response["result"] is None:
                self.counts[f"not known yet: {response['diagnostics']}"] += 1
                return False
            self._look(place, person, f"{person.name} look", response, False, False)
            return True

        try:
            for place in self.places:
                await until_found(lambda place=place: knows(place), "it knows of the login", 20, pause=0.3)
        except Exception as error:  # noqa: BLE001 - it was killed meanwhile
            self.counts[f"not known: {error}"] += 1
            return False
        return True

    async def _kills(self, kills: int, runs: int) -> None:
        for number in range(kills):
            due = runs * (kills - number) // (kills + 1)
            await until(lambda due=due: self.left <= due, "runs go on", 600, pause=0.1)
            place = self.places[number % 2]
            before: list[tuple[Person, int]] = []
            for person in self.people:
                # A token that was just being renewed may be lost with it.
                person.changes += 1
                if person.is_in:
                    person.is_in = None
                    before.append((person, person.changes))
            place.deaths += 1
            killed, family = place.daemon, place.daemon.family()
            place.daemon = None
            killed.process.kill()
            await within(killed.process.wait())
            await gone(one for one in family if alive(one))
            await place.stack.aclose()
            place.stack, place.deaths = contextlib.AsyncExitStack(), place.deaths + 1
            self.counts["kills"] += 1
            await self._start(place)
            for person, changes in before:
                knows = changes == person.changes and await self._all_know(person)
                if changes != person.changes:
                    # It has gone or come by itself meanwhile.
                    continue
                if knows:
                    person.is_in = True
                else:
                    self.counts["logins lost with a broker"] += 1
                    await self._log_in(person)

    # ---- what is there -----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _servers(self) -> AsyncGenerator[None]:
        modules = NODE.parent.parent
        require(NODE, modules / "node_modules" / "oidc-provider")
        async with contextlib.AsyncExitStack() as stack:

            async def begun(*words: object) -> tuple[asyncio.subprocess.Process, int]:
                process = await stack.enter_async_context(owned_process(*words, stdin=PIPE, stdout=PIPE))
                return process, int(await within(process.stdout.readline(), 60))

            server, port = await begun(
                *forked_server("oauth_server.py", "--introspecting", "--ledger", self.ledger)
            )
            self.url = f"http://127.0.0.1:{port}/mcp"
            provider = SERVERS / "oidc_provider.mjs"
            _, issuer = await begun(NODE, provider, modules, self.url, TOKEN_SECONDS, self.ledger)
            server.stdin.write(f"http://127.0.0.1:{issuer}\n".encode())
            await server.stdin.drain()
            yield

    async def _start(self, place: Place) -> None:
        place.has_listed = False
        folder = self.folder / f"broker-{place.number}"
        folder.mkdir(exist_ok=True)
        servers = {"notes": {"url": self.url, "login": "each-public-tools"}}
        section = {"auth": {"keyring": "off"}, "journal": "all", "typecheck": "off", "pins": "off"}
        state = ("--state-dir", str(self.folder / "s"))
        served = daemon(folder, *state, servers=servers, token="", **section, **self.section)
        place.daemon = await place.stack.enter_async_context(served)

    async def _none_waits(self) -> bool:
        def look() -> int:
            with contextlib.closing(open_store(self.store, SETTINGS, JournalSettings())) as journals:
                return len(journals.heads(state="parked")) + len(journals.heads(state="running"))

        return await asyncio.to_thread(look) == 0

    def _judge(self) -> None:
        events = ledger(self.ledger)
        self.counts["renewals"] = sum(event["event"] == "refresh_token" for event in events)
        calls = [event for event in events if event["event"] == "call"]
        self.wrong += [
            f"{call['said']} called as {call['person']}"
            for call in calls
            if (call["said"] or "").partition(" ")[0] != call["person"]
        ]
        self.counts["calls"] = len(calls)
        done = {call["said"] for call in calls}
        self.counts["parked runs that went on"] = sum(tag in done for tag in self.parked)
        self.counts["parked runs without a call"] = sum(tag not in done for tag in self.parked)


async def held(campaign: Campaign, kills: int) -> None:
    runs = campaign.left
    await campaign.run(kills)
    assert not campaign.wrong, campaign.wrong[:5]
    counts = campaign.counts
    assert counts["kills"] == kills and counts["logins"] >= 3 and counts["ended well"] > runs / 3, counts
    if runs >= 200:
        # Where there are many, all kinds come.
        assert min(counts["parked runs that went on"], counts["logouts"], counts["renewals"]) > 0, counts


async def test_nobody_calls_as_another_and_every_park_ends(tmp_path: Path) -> None:
    await held(Campaign(tmp_path, 60, seed=1), kills=1)


@pytest.mark.thorough
async def test_a_thousand_runs(tmp_path: Path) -> None:
    await held(Campaign(tmp_path, 1000, seed=2), kills=4)


@pytest.mark.thorough
async def test_where_brokers_share_a_postgresql(tmp_path: Path, postgres_url: str) -> None:
    state = state_of(PostgresServer(postgres_url))
    section = {"url": postgres_url, "key": base64.b64encode(KEY).decode()}
    try:
        await held(Campaign(tmp_path, 200, seed=3, state=(section, state)), kills=2)
    finally:
        state.close()
