"""A login at an upstream server: in two halves, each at another broker, and who tries to misuse it; its challenge and
scopes; and the loopback listener against hostile requests."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.auth.bearer import Login
from cellblock.tools.upstream.auth.errors import LoginError
from cellblock.tools.upstream.auth.flow import KIND, MAX_BYTES, NOT_OURS, BegunLogin, begin, finish, taken
from cellblock.tools.upstream.auth.record import MAX_WANTED_CHARS, LoginRecord
from cellblock.tools.upstream.auth.redirect import MAX_HEAD_BYTES, RedirectListener, code_in
from cellblock.tools.upstream.auth.target import LoginTarget, challenge_of
from support.oauth_world import World, world
from support.params import mostly
from support.shared_rows import AnyStore
from support.waits import within

REDIRECT = "http://127.0.0.1:7433/login/callback"
SECRET = "of the browser that began"
Stores = Callable[[], AnyStore]


@dataclass
class Halves:
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
async def login(tmp_path: Path, store_of_broker: Stores) -> AsyncGenerator[Halves]:
    async with world(tmp_path) as place:
        yield Halves(place, store_of_broker)


ANY_STORE = pytest.mark.parametrize(
    "store_of_broker", mostly(["files"], ["files", "postgresql"]), indirect=True
)
"""Of what does not depend on where it is kept."""


async def test_another_broker_finishes_what_one_has_begun(login: Halves) -> None:
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


async def test_a_redirect_is_good_once(login: Halves) -> None:
    brought = await login.agreed(await login.begun())
    both = await asyncio.gather(*(login.taken(brought["state"]) for _ in range(2)), return_exceptions=True)
    (late,) = [one for one in both if isinstance(one, BaseException)]
    assert isinstance(late, LoginError) and late.message == NOT_OURS
    with pytest.raises(LoginError, match=re.escape(NOT_OURS)):
        await login.taken(brought["state"])


@ANY_STORE
async def test_a_forged_state_finds_nothing_and_ends_nothing(login: Halves) -> None:
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
    login: Halves, bound: float, answer: dict[str, str], told: str
) -> None:
    brought = await login.agreed(await login.begun(bound=bound))
    with pytest.raises(LoginError, match=told):
        await login.taken(brought["state"], **answer)
    with pytest.raises(LoginError, match=re.escape(NOT_OURS)):
        await login.taken(brought["state"])
    assert login.place.events("code") == []


@ANY_STORE
async def test_the_authorization_server_that_was_asked_may_name_itself(login: Halves) -> None:
    await login.finished(await login.agreed(await login.begun()), iss=login.place.issuer)


@ANY_STORE
async def test_the_code_of_another_login_is_of_no_use(login: Halves) -> None:
    """PKCE: each code is good for the verifier of its own login alone."""
    await login.begun("oauth:eve")
    mine, other = await login.agreed(await login.begun()), await login.agreed(await login.begun("oauth:eve"))
    target, begun = await login.taken(mine["state"])
    with pytest.raises(LoginError, match="has failed"):
        await finish(target, begun, other["code"])
    assert await login.target().before() is None


@ANY_STORE
async def test_a_server_that_has_moved_gets_no_token(login: Halves) -> None:
    brought = await login.agreed(await login.begun())
    _, begun = await login.taken(brought["state"])
    with pytest.raises(LoginError, match="another URL"):
        await finish(login.target(url="https://other.example/mcp"), begun, brought["code"])
    assert login.place.events("code") == []


async def test_logins_under_way_are_bounded_and_keep_nobody_from_beginning_one(
    login: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.auth.flow.MAX_BEGUN", 2)
    for bound in (-1, 60):
        await login.begun(bound=bound)
        # What took too long is removed by the next.
        (first,) = login.under_way()
    for bound in (120, 180):
        await login.begun(bound=bound)
    assert len(login.under_way()) == 2 and first not in login.under_way()
    brought = await login.agreed(await login.begun(bound=240))
    await login.taken(brought["state"])
    assert len(login.under_way()) == 1


@ANY_STORE
async def test_a_client_is_registered_anew_for_another_redirect_only(login: Halves) -> None:
    for _ in range(2):
        await login.finished(await login.agreed(await login.begun()))
    assert [event["redirects"] for event in login.place.events("register")] == [[REDIRECT]]
    target = login.target()
    refused: Any = await challenge_of(target, 30)
    await begin(target, refused, await target.before(), "https://cellblock.example/login/callback", SECRET)
    assert len(login.place.events("register")) == 2


# ---- challenges and scopes, and the loopback listener against hostile requests ---------------------------


class Tokens(Login):
    """One token that is never renewed, and perhaps a wider one."""

    def __init__(self, wider: str | None = None) -> None:
        super().__init__("notes", Redactor(ServerConfig(url="https://notes.example/mcp")))
        self.said: list[str] = []
        self.problem, self.wider = "before", wider

    async def token(self) -> str | None:
        return "secret"

    async def renewed(self, used: str | None, refused: httpx2.Response) -> str | None:
        return None

    async def widened(self, used: str, scopes: str | None) -> str | None:
        assert used == "secret"
        return self.wider

    async def lacks(self, scopes: str | None) -> None:
        self.said.append(f"lacks {scopes}")


LACKS = 'Bearer error="insufficient_scope"'
FIRST, WIDER = "Bearer secret", "Bearer wider"


@pytest.mark.parametrize(
    ("wider", "answers", "shown", "said"),
    [
        (
            None,
            [(403, f'{LACKS}, scope="pages:read pages:write"')],
            [FIRST],
            ["lacks pages:read pages:write", "before"],
        ),
        # Scopes in other characters are not quoted.
        *(
            (None, [(403, LACKS + scope)], [FIRST], ["lacks None", "before"])
            for scope in ("", ', scope="a\x1b[2Jb"', ', scope="évil"', f', scope="{"x" * 300}"')
        ),
        # Another refusal says nothing of the login.
        (None, [(403, "Bearer")], [FIRST], ["before"]),
        (None, [(200, "")], [FIRST], [None]),
        # A wider token is tried once.
        ("wider", [(403, f'{LACKS}, scope="a"'), (200, "")], [FIRST, WIDER], [None]),
        ("wider", [(403, f'{LACKS}, scope="a"')] * 2, [FIRST, WIDER], ["lacks a", "before"]),
    ],
)
async def test_scopes_that_are_missing_are_named_unless_a_wider_token_has_them(
    wider: str | None, answers: list[tuple[int, str]], shown: list[str], said: list[str | None]
) -> None:
    tokens = Tokens(wider)
    sent: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.content == b"{}", "the whole request comes again"
        status, challenge = answers[len(sent)]
        sent.append(request.headers["Authorization"])
        return httpx2.Response(status, headers=[(b"WWW-Authenticate", challenge.encode())])

    async with httpx2.AsyncClient(
        transport=httpx2.MockTransport(answer), auth=tokens, trust_env=False
    ) as http:
        await http.post("https://notes.example/mcp", content=b"{}")
    assert sent == shown
    assert [*tokens.said, tokens.problem] == said


def wanting(granted: str | None) -> LoginRecord:
    return LoginRecord(
        server_url="https://notes.example/mcp",
        client=OAuthClientInformationFull(client_id="c"),
        tokens=OAuthToken(access_token="secret", scope=granted),
    )


def test_what_was_granted_is_wanted_again() -> None:
    wanted = wanting("read").wanting("write").wanting("admin write")
    assert wanted.wanted_scope == "read write admin"
    assert wanted.wanting("write") == wanted
    assert wanting(None).wanting("write").wanted_scope == "write"
    # A renewal changes nothing of it, and it is nothing that has to be hidden.
    renewed = wanted.with_tokens(OAuthToken(access_token="other"))
    assert (renewed.wanted_scope, renewed.secrets()) == ("read write admin", ["other"])


def test_a_server_that_names_others_each_time_does_not_fill_the_disk() -> None:
    wanted = wanting("read")
    for number in range(1_000):
        wanted = wanted.wanting(f"scope-{number}")
        assert len(wanted.wanted_scope or "") <= MAX_WANTED_CHARS
    assert re.fullmatch("read .* scope-999", wanted.wanted_scope or "")


STATE = "s" * 43


async def ask(
    listener: RedirectListener, target: str, *, method: str = "GET", host: str | None = None
) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    host = host if host is not None else f"127.0.0.1:{listener.port}"
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
    try:
        return await within(reader.read())
    finally:
        writer.close()


@pytest.fixture
async def listener() -> AsyncIterator[RedirectListener]:
    made = RedirectListener()
    await made.start(0)
    made.expect(f"https://login.example/authorize?state={STATE}&x=1")
    yield made
    await made.close()


async def test_only_our_answer_is_taken_and_only_once(listener: RedirectListener) -> None:
    for target, how, status in [
        (f"/callback?code=x&state={'t' * 43}", {}, b"400"),
        ("/callback?code=x", {}, b"400"),
        (f"/callback?code=x&state={STATE}&state={STATE}", {}, b"400"),
        (f"/callback?code=x&state={STATE}%ff", {}, b"400"),
        (f"/?code=x&state={STATE}", {}, b"404"),
        (f"//callback?code=x&state={STATE}", {}, b"404"),
        ("/callback?" + "&".join(f"a{n}=1" for n in range(500)), {}, b"400"),
        (f"/callback?code=x&state={STATE}", {"host": "evil.example"}, b"404"),
        (f"/callback?code=x&state={STATE}", {"method": "POST"}, b"405"),
    ]:
        assert (await ask(listener, target, **how)).split()[1] == status, target
    page = await ask(listener, f"/callback?code=first&state={STATE}&iss=https%3A%2F%2Flogin.example")
    assert page.split()[1] == b"200"
    assert b"default-src 'none'" in page and b"no-store" in page
    # The listener keeps no connection open: who asks again in the same one may find it reset.
    assert b"\r\nconnection: close\r\n" in page
    assert b"first" not in page
    assert (await ask(listener, f"/callback?code=second&state={STATE}")).split()[1] == b"400"
    assert await listener.answer(20) == {"code": "first", "state": STATE, "iss": "https://login.example"}


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("error=access_denied", "The login was denied."),
        ("error=server_error", "refused: server_error"),
        ("error=%1b%5b2Jx%3Cscript%3E", r"\x1b[2Jx<script>"),
        ("error=" + "e" * 500, "e" * 79 + "…"),
        ("code=x&error=access_denied", "The login was denied."),
        ("nothing=1", "refused: no code"),
    ],
)
async def test_refusals_are_told_in_one_clean_line(listener: RedirectListener, query: str, told: str) -> None:
    assert b"<script>" not in await ask(listener, f"/callback?{query}&state={STATE}")
    with pytest.raises(LoginError) as caught:
        code_in(await listener.answer(20))
    assert told in caught.value.message


async def test_waiting_has_an_end_and_so_have_long_heads(listener: RedirectListener) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"GET /" + b"x" * (MAX_HEAD_BYTES + 10))
    assert (await within(reader.read())).startswith(b"HTTP/1.1 400")
    writer.close()
    with pytest.raises(LoginError, match=r"not come back within 0\.05 s"):
        await listener.answer(0.05)


async def test_a_port_that_is_taken_is_told(listener: RedirectListener) -> None:
    second = RedirectListener()
    with pytest.raises(LoginError, match=f"port {listener.port}"):
        await second.start(listener.port)
    await second.close()
