"""A daemon in front of a server that wants everybody's own login, and browsers that log in at its pages."""

import contextlib
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx2

from cellblock.base.settings.server import AuthSettings
from cellblock.base.store import LocalStore, Store
from cellblock.fleet.shared_state import SharedState
from cellblock.tools.upstream.auth.flow import KIND, MAX_BYTES
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.store import LoginStore
from support.commands import cellblock
from support.http_daemon import Daemon, daemon
from support.http_server import free_port
from support.identity_provider import Provider
from support.oauth_world import World, world

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
        made = await cellblock("token", "create", name, "--state-dir", self.daemon.folder / "s")
        assert made.code == 0, made.err
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
