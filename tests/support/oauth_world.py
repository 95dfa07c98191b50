"""A real authorization server with an MCP server that it protects, the command line, and a browser that logs in; a
daemon in front of them that wants everybody's own login, and browsers that log in at its pages.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx2

from cellblock.base.settings.server import AuthSettings
from cellblock.base.settings.settings import Settings
from cellblock.base.store import LocalStore, Store
from cellblock.fleet.shared_state import SharedState
from cellblock.tools.upstream.auth.flow import KIND, MAX_BYTES
from cellblock.tools.upstream.auth.login import log_in
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.store import LoginStore
from cellblock.tools.upstream.auth.target import LoginTarget, target_of
from servers import browser
from support.commands import Said, cellblock
from support.entries import SERVERS, forked_server, ledger, settings, write_config
from support.http_daemon import Daemon, daemon
from support.http_server import free_port
from support.identity_provider import Provider
from support.processes import owned_process
from support.waits import within


@dataclass
class World:
    """One folder: configuration, state, the authorization server's ledger, what the browser saw."""

    folder: Path
    issuer: str
    url: str
    process: asyncio.subprocess.Process
    cellblock: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    transport: str = "http"
    entry: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def servers(self) -> dict[str, Any]:
        kind = {"type": "sse"} if self.transport == "sse" else {}
        return {"notes": {"url": self.url, **self.entry, **kind}}

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What happened at the authorization server and the protected server."""
        return [event for event in ledger(self.folder / "ledger.jsonl") if name in (None, event["event"])]

    def tokens(self) -> list[str]:
        """Every access and refresh token that was ever granted."""
        granted = self.events("grant")
        return [event[kind] for event in granted for kind in ("access", "refresh") if event[kind]]

    def seen(self) -> list[dict[str, Any]]:
        """What the browser has seen."""
        return ledger(self.folder / "browser.jsonl")

    async def run(self, *arguments: str, habit: str = "allow", **environment: str) -> Said:
        """Runs `cellblock`, whose browser has this habit."""
        config = write_config(self.folder, self.servers, **self.cellblock)
        browser = f"{sys.executable} {SERVERS / 'browser.py'} {self.folder / 'browser.jsonl'} {habit} %s"
        place = ("--config", config, "--state-dir", self.state)
        given = {**os.environ, "BROWSER": browser, **self.environment, **environment}
        return await cellblock(*arguments, *place, env=given)

    @property
    def settings(self) -> Settings:
        return settings(self.state, self.servers, **self.cellblock)

    def place(self) -> LoginTarget:
        """What `cellblock auth` works on."""
        made = self.settings
        return target_of("notes", made.servers, made.cellblock.auth, LocalStore(made.state_dir))

    async def log_in(self) -> str:
        """A login in this process, which must succeed; the same as the command's, with the same browser in a thread."""
        visits: list[asyncio.Task[None]] = []

        def say(text: str) -> None:
            url = re.search(r"https?://\S+", text)
            visit = asyncio.to_thread(browser.visit, self.folder / "browser.jsonl", "allow", url[0])
            visits.append(asyncio.create_task(visit))

        done = await within(log_in(self.place(), browser=None, bound=30, say=say), 60)
        await asyncio.gather(*visits)
        return done

    async def log_in_for(self, principal: str, name: str, *, store: Store | None = None) -> None:
        """Has a principal logged in, as the person of this name at the server."""
        await self._told("person", name)
        await self.log_in()
        mine = self.place().store()
        await LoginStore(
            store or LocalStore(self.state), "notes", self.url, self.settings.cellblock.auth, person=principal
        ).save(await mine.load())
        await mine.delete()

    async def end_logins(self) -> None:
        """Ends every login at the authorization server."""
        await self._told("end")

    async def _told(self, what: str, content: str = "") -> None:
        async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
            (await http.post(f"{self.issuer}{what}", content=content)).raise_for_status()


@contextlib.asynccontextmanager
async def world(
    folder: Path,
    *options: str,
    auth: Mapping[str, Any] | None = None,
    transport: str = "http",
    **cellblock: Any,
) -> AsyncGenerator[World]:
    """Starts both servers on free ports of the loopback; at the end nothing of them is left."""
    served = forked_server("oauth_server.py", "--ledger", folder / "ledger.jsonl", "--transport", transport)
    async with owned_process(*served, *options, stdin=DEVNULL, stdout=PIPE) as process:
        issuer_port, mcp_port = map(int, (await within(process.stdout.readline(), 60)).split())
        issuer = f"http://127.0.0.1:{issuer_port}/"
        # The issuer's URL is known only now, in place of ISSUER.
        own = json.loads(json.dumps(dict(auth or {})).replace("ISSUER", issuer))
        yield World(
            folder,
            issuer,
            f"http://127.0.0.1:{mcp_port}/mcp",
            process,
            {"auth": {"keyring": "off", **own}, **cellblock},
            transport=transport,
        )


LINK = re.compile(r'id="allow" href="([^"]+)"')


class Browser:
    """A browser with cookies of its own. It goes where it is led, and agrees where it is asked."""

    def __init__(self) -> None:
        self.http = httpx2.AsyncClient(trust_env=False, verify=False, timeout=60)
        self.way: list[str] = []

    async def get(self, url: str, **headers: str) -> httpx2.Response:
        return await self.http.get(url, headers=headers)

    async def post(self, url: str, form: Mapping[str, str] | None = None, **headers: str) -> httpx2.Response:
        return await self.http.post(url, data=dict(form or {}), headers=headers)

    async def followed(self, page: httpx2.Response, *, until: str = "") -> httpx2.Response:
        """Goes on to the last page, or to the first redirect to a URL that begins so: its page is not asked for."""
        for _ in range(12):
            if page.is_redirect:
                url = urljoin(str(page.url), page.headers["location"])
                self.way.append(url)
                if until and url.startswith(until):
                    return page
                page = await self.get(url)
            elif (link := LINK.search(page.text)) is not None:
                page = await self.get(urljoin(str(page.url), link[1].replace("&amp;", "&")))
            else:
                return page
        raise AssertionError(f"it is led without end: {self.way}")


@dataclass
class Site:
    """A daemon in front of a server that wants everybody's own login."""

    place: World
    daemon: Daemon
    store: Store
    browsers: list[Browser] = field(default_factory=list[Browser])

    @property
    def page(self) -> str:
        return f"{self.origin}/login/notes"

    @property
    def origin(self) -> str:
        return self.daemon.url.removesuffix("/mcp")

    @property
    def callback(self) -> str:
        return f"{self.origin}/login/callback"

    def browser(self) -> Browser:
        self.browsers.append(Browser())
        return self.browsers[-1]

    async def token(self, name: str) -> str:
        made = await cellblock("token", "create", name, "--state-dir", self.daemon.folder / "s", code=0)
        return made.out.strip().splitlines()[-1].split()[-1]

    async def login_of(self, person: str) -> LoginRecord | None:
        if isinstance(self.store, SharedState):
            self.store.rows.read()
        kept = LoginStore(self.store, "notes", self.place.url, AuthSettings(keyring="off"), person=person)
        return await kept.load()

    def under_way(self) -> list[str]:
        shelf = self.store.shelf(KIND, MAX_BYTES)
        shelf.refresh()
        return shelf.names()


@contextlib.asynccontextmanager
async def site(
    folder: Path,
    *options: str,
    http: Mapping[str, Any] | None = None,
    store: Store | None = None,
    login: str = "each",
    **section: Any,
) -> AsyncGenerator[Site]:
    async with world(folder) as place:
        servers = {"notes": {"url": place.url, "login": login}, "shared": {"url": place.url}}
        sections = {"auth": {"keyring": "off"}, "typecheck": "off", "pool": {"warm": 0}, **section}
        token = "" if "oauth" in (http or {}) else None
        async with daemon(folder, *options, servers=servers, http=http, token=token, **sections) as served:
            made = Site(place, served, store or LocalStore(folder / "s"))
            try:
                yield made
            finally:
                for browser in made.browsers:
                    await browser.http.aclose()


@contextlib.asynccontextmanager
async def team(folder: Path, idp: Provider, **http: Any) -> AsyncGenerator[Site]:
    """The same, with an identity provider that says who people are."""
    port = free_port()
    oauth = idp.oauth(f"http://127.0.0.1:{port}/mcp")
    options = ("--http", f"127.0.0.1:{port}")
    async with site(folder, *options, http={"oauth": {**oauth, **http}}) as made:
        yield made
