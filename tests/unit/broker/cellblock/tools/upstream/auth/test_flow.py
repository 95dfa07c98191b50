"""A login in two halves, each at another broker, against a real authorization server; and who tries to misuse it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
import pytest

from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.auth import flow
from cellblock.tools.upstream.auth.errors import LoginError
from cellblock.tools.upstream.auth.flow import KIND, MAX_BYTES, NOT_OURS, BegunLogin, begin, finish, taken
from cellblock.tools.upstream.auth.target import LoginTarget, challenge_of
from support.oauth_world import World, world
from support.params import mostly
from support.shared_rows import AnyStore

REDIRECT = "http://127.0.0.1:7433/login/callback"
SECRET = "of the browser that began"
Stores = Callable[[], AnyStore]


@dataclass
class Login:
    """What a test does with one server's login; each half has a store of its own, as another broker has."""

    place: World
    stores: Stores

    def target(self, person: str = "oauth:ada", url: str | None = None) -> LoginTarget:
        return LoginTarget(
            "notes",
            ServerConfig(url=url or self.place.url),
            self.place.settings.cellblock.auth,
            self.stores(),
            person,
        )

    async def begun(self, person: str = "oauth:ada", **more: Any) -> str:
        target = self.target(person)
        refused: Any = await challenge_of(target, 30)
        return await begin(target, refused, await target.before(), REDIRECT, SECRET, **more)

    async def agreed(self, url: str) -> dict[str, str]:
        """What the redirect brings after a person has agreed."""
        async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=120) as http:
            page = await http.get(url, follow_redirects=True)
            (link,) = re.findall(r'id="allow" href="([^"]+)"', page.text)
            last = await http.get(urljoin(str(page.url), link.replace("&amp;", "&")))
        back = urlsplit(last.headers["location"])
        assert back._replace(query="").geturl() == REDIRECT
        return {name: values[0] for name, values in parse_qs(back.query).items()}

    async def taken(
        self, state: str, bound_to: str = SECRET, iss: str | None = None
    ) -> tuple[LoginTarget, BegunLogin]:
        target = self.target()
        return target, await taken(target.kept, state, bound_to, iss)

    async def finished(self, brought: dict[str, str], iss: str | None = None) -> tuple[str, str]:
        target, begun = await self.taken(brought["state"], iss=iss)
        return await finish(target, begun, brought["code"])

    def under_way(self) -> list[str]:
        shelf = self.stores().shelf(KIND, MAX_BYTES)
        shelf.refresh()
        return shelf.names()


@pytest.fixture
async def login(tmp_path: Path, store_of_broker: Stores) -> AsyncGenerator[Login]:
    async with world(tmp_path) as place:
        yield Login(place, store_of_broker)


ANY_STORE = pytest.mark.parametrize(
    "store_of_broker", mostly(["files"], ["files", "postgresql"]), indirect=True
)
"""Of what does not depend on where it is kept."""


async def test_another_broker_finishes_what_one_has_begun(login: Login) -> None:
    url = await login.begun()
    assert SECRET not in url and "code_challenge_method=S256" in url
    brought = await login.agreed(url)
    (name,) = login.under_way()
    assert brought["state"] not in name, "it is named by a hash"
    where, less = await login.finished(brought)
    assert where.startswith(("in ", "where brokers")) and less == ""
    assert login.under_way() == []
    record: Any = await login.target().before()
    assert record.tokens is not None
    assert (record.person, record.issuer) == ("oauth:ada", login.place.issuer)
    assert record.since and record.renewed >= record.since
    for other in ("", "oauth:eve", "token:ada", "oauth:Ada"):
        assert await login.target(other).before() is None
    (event,) = login.place.events("code")
    assert event["resource"] == login.place.url, "RFC 8707: the token is for this server"


async def test_a_redirect_is_good_once(login: Login) -> None:
    brought = await login.agreed(await login.begun())
    both = await asyncio.gather(*(login.taken(brought["state"]) for _ in range(2)), return_exceptions=True)
    (late,) = [one for one in both if isinstance(one, BaseException)]
    assert isinstance(late, LoginError) and late.message == NOT_OURS
    with pytest.raises(LoginError, match=re.escape(NOT_OURS)):
        await login.taken(brought["state"])


@ANY_STORE
async def test_a_forged_state_finds_nothing_and_ends_nothing(login: Login) -> None:
    brought = await login.agreed(await login.begun())
    state, (name,) = brought["state"], login.under_way()
    for forged in (
        "",
        name,
        name.partition("-")[2],
        "x" * 43,
        f"../{state}",
        f"{state}\n",
        state[:-1],
        state.upper() + "\0",
        "\ud800",
        "f" * 100_000 + state,
    ):
        with pytest.raises(LoginError, match=re.escape(NOT_OURS)):
            await login.taken(forged)
    await login.finished(brought)


@ANY_STORE
@pytest.mark.parametrize(
    ("bound", "answer", "told"),
    [
        # Who begins a login and has somebody else agree would get the other's tokens.
        *(
            (600, {"bound_to": other}, "begun in another browser")
            for other in ("", "of another browser", SECRET + "\0")
        ),
        # RFC 9207, a mix-up: the code would be sent to the authorization server that was asked.
        (600, {"iss": "https://other.example/"}, "iss mismatch"),
        (-1, {}, "too long ago"),
    ],
)
async def test_a_redirect_that_is_refused_is_used_up(
    login: Login, bound: float, answer: dict[str, str], told: str
) -> None:
    brought = await login.agreed(await login.begun(bound=bound))
    with pytest.raises(LoginError, match=told):
        await login.taken(brought["state"], **answer)
    with pytest.raises(LoginError, match=re.escape(NOT_OURS)):
        await login.taken(brought["state"])
    assert login.place.events("code") == []


async def test_one_that_took_too_long_is_removed(login: Login) -> None:
    await login.begun(bound=-1)
    (old,) = login.under_way()
    await login.begun()
    (new,) = login.under_way()
    assert old != new


@ANY_STORE
async def test_the_authorization_server_that_was_asked_may_name_itself(login: Login) -> None:
    await login.finished(await login.agreed(await login.begun()), iss=login.place.issuer)


@ANY_STORE
async def test_the_code_of_another_login_is_of_no_use(login: Login) -> None:
    """PKCE: each code is good for the verifier of its own login alone."""
    await login.begun("oauth:eve")
    mine, other = await login.agreed(await login.begun()), await login.agreed(await login.begun("oauth:eve"))
    target, begun = await login.taken(mine["state"])
    with pytest.raises(LoginError, match="has failed"):
        await finish(target, begun, other["code"])
    assert await login.target().before() is None


@ANY_STORE
async def test_a_server_that_has_moved_gets_no_token(login: Login) -> None:
    brought = await login.agreed(await login.begun())
    _, begun = await login.taken(brought["state"])
    with pytest.raises(LoginError, match="another URL"):
        await finish(login.target(url="https://other.example/mcp"), begun, brought["code"])
    assert login.place.events("code") == []


async def test_logins_under_way_are_bounded_and_keep_nobody_from_beginning_one(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "MAX_BEGUN", 2)
    await login.begun(bound=60)
    (first,) = login.under_way()
    for bound in (120, 180):
        await login.begun(bound=bound)
    assert len(login.under_way()) == 2 and first not in login.under_way()
    brought = await login.agreed(await login.begun(bound=240))
    await login.taken(brought["state"])
    assert len(login.under_way()) == 1


@ANY_STORE
async def test_a_client_is_registered_anew_for_another_redirect_only(login: Login) -> None:
    for _ in range(2):
        await login.finished(await login.agreed(await login.begun()))
    assert [event["redirects"] for event in login.place.events("register")] == [[REDIRECT]]
    target = login.target()
    refused: Any = await challenge_of(target, 30)
    await begin(target, refused, await target.before(), "https://cellblock.example/login/callback", SECRET)
    assert len(login.place.events("register")) == 2
