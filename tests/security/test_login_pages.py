"""The pages that lead to a server's login: whose login it becomes, and who tries to get another's."""

import base64
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from httpx2 import Response

from cellblock.base.store import Store
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedState
from support.http_daemon import daemon
from support.identity_provider import CLIENT_ID, CLIENT_SECRET, Provider, provider
from support.oauth_world import Browser, Site, site, team
from support.shared_rows import KEY
from support.waits import within


@pytest.fixture
def idp() -> Iterator[Provider]:
    with provider() as made:
        yield made


@pytest.fixture(scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """A site at which nobody begins anything."""
    async with site(tmp_path_factory.mktemp("site")) as found:
        yield found
        assert found.place.events("register") == []


def state_in(url: str) -> str:
    return parse_qs(urlsplit(url).query)["state"][0]


def code_in(url: str) -> str:
    return parse_qs(urlsplit(url).query)["code"][0]


def secret_of(browser: Browser) -> str:
    return next(cookie.value or "" for cookie in browser.http.cookies.jar)


def told(page: Response, status: int, text: str) -> None:
    """The page has this status and says this."""
    assert page.status_code == status and text in page.text, page.text


async def logs_in(made: Site, form: dict[str, str] | None = None) -> tuple[Browser, Response]:
    """A new browser, and the last page of its login."""
    browser = made.browser()
    return browser, await browser.followed(await browser.post(made.page, form))


async def comes_back(made: Site, form: dict[str, str] | None = None) -> tuple[Browser, str]:
    """A new browser that has begun a login, and the redirect that it would follow to the callback."""
    browser = made.browser()
    await browser.followed(await browser.post(made.page, form), until=made.callback)
    return browser, browser.way[-1]


# ---- with tokens of Cellblock's ----------------------------------------------------------------------


async def test_the_login_is_of_whoever_shows_a_token(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        browser, eve = made.browser(), await made.token("eve")
        page = await browser.get(made.page)
        assert page.status_code == 200 and "type=password" in page.text and "width=device-width" in page.text
        assert made.under_way() == [], "a link begins nothing"
        led = await browser.post(made.page, {"token": eve}, Origin=made.origin)
        assert led.status_code == 303 and led.headers["location"].startswith(f"{made.place.issuer}authorize?")
        (cookie,) = browser.http.cookies.jar
        assert (cookie.name, cookie.path) == ("cellblock_login", "/") and cookie.has_nonstandard_attr(
            "HttpOnly"
        )
        assert "SameSite=lax" in led.headers["set-cookie"] and eve not in led.headers["location"]
        told(await browser.followed(led), 200, "token:eve is logged in to notes")
        record = await made.login_of("token:eve")
        assert record.tokens is not None and record.person == "token:eve"
        assert await made.login_of("") is None
        # The token of the token file is the user's of this machine.
        _, done = await logs_in(made, {"token": made.daemon.token})
        assert "The user of this machine is logged in" in done.text, done.text
        assert (await made.login_of("")).tokens != record.tokens
        for token in (eve, made.daemon.token, *made.place.tokens()):
            assert all(token not in text for text in (done.text, *made.daemon.said))


async def test_pages_are_there_for_servers_with_everybodys_own_login_alone(made: Site) -> None:
    browser = made.browser()
    for name in ("shared", "plain", "nothing", "", "notes/", "NOTES", "../notes", "notes%00"):
        url = f"{made.origin}/login/{name}"
        assert (await browser.get(url)).status_code in (401, 404), name
        assert (await browser.post(url, {"token": made.daemon.token or ""})).status_code in (401, 404), name
    told(await browser.get(f"{made.origin}/login/nothing"), 404, "ask whoever runs this Cellblock")


@pytest.mark.parametrize("token", ["", "x" * 43, "é" * 43, "\0"])
async def test_who_shows_no_token_is_led_nowhere(made: Site, token: str) -> None:
    told(await made.browser().post(made.page, {"token": token}), 403, "not known here")
    assert (await made.browser().post(made.page, {"token": "x" * 100_000})).status_code == 413
    assert made.under_way() == []


async def test_another_site_begins_nothing_and_leads_to_the_page(tmp_path: Path) -> None:
    """It could have a browser begin a login of its own, and the person agree."""
    async with site(tmp_path) as made:
        browser, mine = made.browser(), {"token": made.daemon.token or ""}
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"},
            {"Host": "evil.example"},
        ):
            assert (await browser.post(made.page, mine, **headers)).status_code == 403, headers
        led = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate"}
        assert (await browser.get(made.page, **led)).status_code == 200
        assert (await browser.get(made.page, **{**led, "Sec-Fetch-Dest": "iframe"})).status_code == 403
        assert made.under_way() == []
        # Whatever is added to a link, it leads nowhere else.
        page = await browser.get(f"{made.page}?next=https://evil.example&redirect_uri=https://evil.example")
        led_to = await browser.post(f"{made.page}?next=https://evil.example", mine)
        assert "evil.example" not in page.text + led_to.headers["location"]


async def test_pages_are_guarded_by_their_headers(made: Site) -> None:
    browser = made.browser()
    pages = [await browser.get(made.page), await browser.get(f"{made.callback}?state=<script>&error=<b>")]
    pages.append(await browser.post(made.page, {"token": "<script>"}))
    for page in pages:
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "script-src" not in policy and "<script>" not in page.text and "<b>" not in page.text
        assert page.headers["x-frame-options"] == "DENY" and page.headers["cache-control"] == "no-store"
        # With `no-referrer` a browser sends a form with `Origin: null`.
        assert page.headers["referrer-policy"] == "same-origin"


async def test_redirects_that_belong_to_no_login_of_this_browser(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        mine = {"token": made.daemon.token}
        browser, url = await comes_back(made, mine)
        for wrong in (
            url.replace(state_in(url), f"{state_in(url).partition('.')[0]}.{'x' * 43}"),
            f"{url}&state={state_in(url)}",
            f"{made.callback}?state=",
            f"{made.callback}?state=x&code=y",
        ):
            told(await browser.get(wrong), 400, "belongs to no login")
        assert (await browser.get(url)).status_code == 200
        told(await browser.get(url), 400, "belongs to no login")
        before = await made.login_of("")

        # Of another browser, with no cookie, another's, its own twice, or one that is none.
        others, begun_there = made.browser(), (await comes_back(made, mine))[0]
        for cookie in ("", secret_of(begun_there), "x"):
            browser, url = await comes_back(made, mine)
            sent = {"Cookie": f"cellblock_login={cookie}"} if cookie else {}
            told(await others.get(url, **sent), 400, "another browser")
            told(await browser.get(url), 400, "belongs to no login")
        browser, url = await comes_back(made, mine)
        twice = f"cellblock_login={secret_of(browser)}; cellblock_login={secret_of(browser)}"
        assert (await others.get(url, Cookie=twice)).status_code == 400

        # A mix-up, and a code of another login.
        browser, url = await comes_back(made, mine)
        told(await browser.get(f"{url}&iss=https%3A%2F%2Fevil.example"), 400, "iss mismatch")
        (browser, url), (_, other) = await comes_back(made, mine), await comes_back(made, mine)
        told(await browser.get(url.replace(code_in(url), code_in(other))), 400, "has failed")
        browser, url = await comes_back(made, mine)
        refused = f"{made.callback}?state={state_in(url)}&error=access_denied"
        told(await browser.get(refused), 400, "denied")
        assert await made.login_of("") == before


async def test_strangers_are_slowed_down(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        browser = made.browser()
        assert {(await browser.get(made.page)).status_code for _ in range(120)} == {200, 429}


# ---- with an identity provider -----------------------------------------------------------------------


@pytest.mark.parametrize("by_post", [False, True])
async def test_the_login_is_of_whom_the_identity_provider_names(
    tmp_path: Path, idp: Provider, by_post: bool
) -> None:
    idp.sub, idp.by_post = "Ada/\0 L", by_post
    async with team(tmp_path, idp) as made:
        browser = made.browser()
        page = await browser.get(made.page)
        assert "type=password" not in page.text and f"127.0.0.1:{idp.port}" in page.text
        # The daemon asks for its keys as it starts, and is ready before it has them.
        assert set(idp.asked) <= {"/jwks"} and made.under_way() == [], "a link begins nothing"
        told(await browser.followed(await browser.post(made.page)), 200, "is logged in to notes")
        assert [urlsplit(url).path for url in browser.way] == [
            *("/authorize", "/login/callback", "/authorize", "/consent", "/login/callback")
        ]
        assert (await made.login_of("oauth:Ada/\0 L")).tokens is not None
        for other in ("", "oauth:Ada", "oauth:ada/\0 l", "token:Ada/\0 L", "oauth:Ada/"):
            assert await made.login_of(other) is None
        assert made.under_way() == []
        assert all(CLIENT_SECRET not in file.read_text() for file in (tmp_path / "s").rglob("*.json"))


WRONG_TOKENS: tuple[dict[str, Any], ...] = (
    {"claims": {"aud": "another-client"}},
    {"claims": {"aud": [CLIENT_ID, "another-client"]}},
    {"claims": {"nonce": "of another login"}},
    {"claims": {"nonce": None}},
    {"claims": {"iss": "https://login.example"}},
    {"claims": {"exp": 1}},
    {"claims": {"exp": None}},
    {"claims": {"sub": None}},
    {"headers": {"alg": "none"}},
    {"signs_with": ec.generate_private_key(ec.SECP256R1())},
    {"headers": {"alg": "HS256"}, "signs_with": "x" * 32},
    {"headers": {"kid": "k2"}},
)


async def test_an_id_token_that_is_not_for_this_login_names_nobody(tmp_path: Path, idp: Provider) -> None:
    async with team(tmp_path, idp) as made:
        for wrong in WRONG_TOKENS:
            with misled(idp, **wrong):
                _, done = await logs_in(made)
            assert done.status_code == 400 and "ID token" in done.text, (wrong, done.text)
            assert made.under_way() == []
        assert made.place.events("register") == []
        told((await logs_in(made))[1], 200, "is logged in to notes")


@contextlib.contextmanager
def misled(idp: Provider, **wrong: Any) -> Iterator[None]:
    before = {name: getattr(idp, name) for name in wrong}
    vars(idp).update(wrong)
    yield
    vars(idp).update(before)


WRONG_METADATA = (
    ({"issuer": "https://login.example"}, "another issuer"),
    ({"authorization_endpoint": "http://login.example/authorize"}, "neither https nor on this machine"),
    ({"token_endpoint": "http://login.example/token"}, "neither https nor on this machine"),
    ({"authorization_endpoint": "javascript:alert(1)//"}, "no metadata"),
    ({"authorization_endpoint": None}, "no metadata"),
)


async def test_metadata_of_an_identity_provider_that_lead_astray(tmp_path: Path, idp: Provider) -> None:
    async with team(tmp_path, idp) as made:
        for metadata, said in WRONG_METADATA:
            with misled(idp, metadata=metadata):
                told(await made.browser().post(made.page), 400, said)
        assert made.under_way() == []


async def test_what_the_identity_provider_brings_is_good_for_its_browser_and_once(
    tmp_path: Path, idp: Provider
) -> None:
    async with team(tmp_path, idp) as made:
        # Eve has somebody else come back as her: his tokens would be hers.
        idp.sub = "eve"
        _, url = await comes_back(made)
        told(await made.browser().get(url), 400, "another browser")
        browser, url = await comes_back(made)
        led = await browser.get(url)
        assert led.status_code == 303 and (await browser.get(url)).status_code == 400
        # Her second half is bound as the first one was.
        await browser.followed(led, until=made.callback)
        told(await made.browser().get(browser.way[-1]), 400, "another browser")
        idp.iss = "https://evil.example"
        browser, url = await comes_back(made)
        told(await browser.get(url), 400, "iss mismatch")
        assert await made.login_of("oauth:eve") is None and made.place.events("code") == []


@pytest.mark.parametrize("says_so", ["the audience", "a name that is allowed"])
async def test_behind_a_proxy_browsers_are_where_the_configuration_says(
    tmp_path: Path, idp: Provider, says_so: str
) -> None:
    by_audience = says_so == "the audience"
    oauth = {"oauth": idp.oauth("https://cellblock.example/mcp")}
    host = {} if by_audience else {"Host": "cellblock.example"}
    http = oauth if by_audience else {"allowed_hosts": ["cellblock.example"]}
    async with site(tmp_path, http=http) as made:
        mine = {"token": made.daemon.token}
        led = await made.browser().post(made.page, mine, Origin="https://cellblock.example", **host)
        assert led.status_code == 303
        asked = parse_qs(urlsplit(led.headers["location"]).query)
        assert asked["redirect_uri"] == ["https://cellblock.example/login/callback"]
        name, _, rest = led.headers["set-cookie"].partition("=")
        assert name == "__Host-cellblock_login" and rest.endswith("; Secure") and "Path=/;" in rest
        # The name without the prefix, which a neighbour could set, counts for nothing.
        url = f"{made.callback}?state={state_in(led.headers['location'])}&code=x"
        secret = rest.partition(";")[0]
        page = await made.browser().get(url, Cookie=f"cellblock_login={secret}", **host)
        told(page, 400, "another browser")


async def test_without_a_client_of_the_issuers_there_are_no_pages(tmp_path: Path, idp: Provider) -> None:
    async with team(tmp_path, idp, client_id=None, client_secret=None) as made:
        assert (await made.browser().get(made.page)).status_code == 401


# ---- several brokers ---------------------------------------------------------------------------------


@pytest.fixture(params=["files", pytest.param("postgresql", marks=pytest.mark.slow)])
def shared(request: pytest.FixtureRequest) -> Any:
    """The section `state`, and the store, of brokers that have it in common."""
    if request.param == "files":
        yield {}, None
        return
    url = request.getfixturevalue("postgres_url")
    store = SharedState(PostgresServer(url), (KEY,))
    yield {"url": url, "key": base64.b64encode(KEY).decode()}, store
    store.close()


async def test_a_broker_finishes_what_one_that_was_killed_has_begun(
    tmp_path: Path, idp: Provider, shared: tuple[dict[str, Any], Store | None]
) -> None:
    """Behind a proxy, whose name both have."""
    state, store = shared
    oauth = idp.oauth("http://127.0.0.1:1/mcp")
    async with site(
        tmp_path, http={"oauth": oauth}, store=store, **({"state": state} if state else {})
    ) as first:
        browser = first.browser()
        await browser.followed(await browser.post(first.page), until="http://127.0.0.1:1/")
        first.daemon.process.send_signal(signal.SIGKILL)
        await within(first.daemon.process.wait())
        (tmp_path / "b").mkdir()
        servers = {"notes": {"url": first.place.url, "login": "each"}}
        folder = tmp_path / "b" if state else tmp_path
        sections = {"auth": {"keyring": "off"}, "typecheck": "off", "pool": {"warm": 0}}
        sections |= {"state": state} if state else {}
        async with daemon(folder, servers=servers, http={"oauth": oauth}, token="", **sections) as second:
            origin = second.url.removesuffix("/mcp")

            led = await browser.get(browser.way[-1].replace("http://127.0.0.1:1", origin))
            assert led.status_code == 303, led.text
            await browser.followed(led, until="http://127.0.0.1:1/")
            done = await browser.get(browser.way[-1].replace("http://127.0.0.1:1", origin))
            told(done, 200, "oauth:ada is logged in")
            assert (await first.login_of("oauth:ada")).tokens is not None
