"""The pages that lead to a server's login: whose login it becomes, and who tries to get another's."""

import base64
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from cellblock.base.store import Store
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedState
from support.http_daemon import daemon
from support.identity_provider import CLIENT_ID, CLIENT_SECRET, Provider, provider
from support.login_site import Browser, Site, site, team
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


def secret_of(browser: Browser) -> str:
    return next(cookie.value or "" for cookie in browser.http.cookies.jar)


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
        done = await browser.followed(led)
        assert done.status_code == 200 and "token:eve is logged in to notes" in done.text, done.text
        record = await made.login_of("token:eve")
        assert record is not None and record.tokens is not None and record.person == "token:eve"
        assert await made.login_of("") is None
        # The token of the token file is the user's of this machine.
        browser = made.browser()
        assert made.daemon.token is not None
        done = await browser.followed(await browser.post(made.page, {"token": made.daemon.token}))
        assert "The user of this machine is logged in" in done.text, done.text
        mine = await made.login_of("")
        assert mine is not None and mine.tokens != record.tokens
        for token in (eve, made.daemon.token, *made.place.tokens()):
            assert all(token not in text for text in (done.text, *made.daemon.said))


async def test_pages_are_there_for_servers_with_everybodys_own_login_alone(made: Site) -> None:
    browser = made.browser()
    for name in ("shared", "plain", "nothing", "", "notes/", "NOTES", "../notes", "notes%00"):
        url = f"{made.origin}/login/{name}"
        assert (await browser.get(url)).status_code in (401, 404), name
        assert (await browser.post(url, {"token": made.daemon.token or ""})).status_code in (401, 404), name
    said = await browser.get(f"{made.origin}/login/nothing")
    assert said.status_code == 404 and "ask whoever runs this Cellblock" in said.text


@pytest.mark.parametrize("token", ["", "x" * 43, "é" * 43, "\0"])
async def test_who_shows_no_token_is_led_nowhere(made: Site, token: str) -> None:
    refused = await made.browser().post(made.page, {"token": token})
    assert refused.status_code == 403 and "not known here" in refused.text
    large = await made.browser().post(made.page, {"token": "x" * 100_000})
    assert large.status_code == 413
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
        mine = {"token": made.daemon.token or ""}

        async def comes_back() -> tuple[Browser, str]:
            browser = made.browser()
            await browser.followed(await browser.post(made.page, mine), until=made.callback)
            return browser, browser.way[-1]

        browser, url = await comes_back()
        forged = url.replace(state_in(url), f"{state_in(url).partition('.')[0]}.{'x' * 43}")
        for wrong in (
            forged,
            f"{url}&state={state_in(url)}",
            f"{made.callback}?state=",
            f"{made.callback}?state=x&code=y",
        ):
            page = await browser.get(wrong)
            assert page.status_code == 400 and "belongs to no login" in page.text, wrong
        assert (await browser.get(url)).status_code == 200
        replayed = await browser.get(url)
        assert replayed.status_code == 400 and "belongs to no login" in replayed.text
        before = await made.login_of("")

        # Of another browser, with no cookie, another's, its own twice, or one that is none.
        others, begun_there = made.browser(), (await comes_back())[0]
        for cookie in ("", secret_of(begun_there), "x"):
            browser, url = await comes_back()
            sent = {"Cookie": f"cellblock_login={cookie}"} if cookie else {}
            page = await others.get(url, **sent)
            assert page.status_code == 400 and "another browser" in page.text, cookie
            late = await browser.get(url)
            assert late.status_code == 400 and "belongs to no login" in late.text
        browser, url = await comes_back()
        twice = f"cellblock_login={secret_of(browser)}; cellblock_login={secret_of(browser)}"
        assert (await others.get(url, Cookie=twice)).status_code == 400

        # A mix-up, and a code of another login.
        browser, url = await comes_back()
        page = await browser.get(f"{url}&iss=https%3A%2F%2Fevil.example")
        assert page.status_code == 400 and "iss mismatch" in page.text
        (browser, url), (_, other) = await comes_back(), await comes_back()
        code, foreign = (parse_qs(urlsplit(one).query)["code"][0] for one in (url, other))
        page = await browser.get(url.replace(code, foreign))
        assert page.status_code == 400 and "has failed" in page.text
        browser, url = await comes_back()
        page = await browser.get(f"{made.callback}?state={state_in(url)}&error=access_denied")
        assert page.status_code == 400 and "denied" in page.text
        assert await made.login_of("") == before


async def test_strangers_are_slowed_down(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        browser = made.browser()
        statuses = {(await browser.get(made.page)).status_code for _ in range(120)}
        assert statuses == {200, 429}


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
        done = await browser.followed(await browser.post(made.page))
        assert done.status_code == 200 and "is logged in to notes" in done.text, done.text
        paths = [urlsplit(url).path for url in browser.way]
        assert paths == [
            "/authorize",
            "/login/callback",
            "/authorize",
            "/consent",
            "/login/callback",
        ]
        record = await made.login_of("oauth:Ada/\0 L")
        assert record is not None and record.tokens is not None
        for other in ("", "oauth:Ada", "oauth:ada/\0 l", "token:Ada/\0 L", "oauth:Ada/"):
            assert await made.login_of(other) is None
        assert made.under_way() == []
        kept = [file.read_text() for file in (tmp_path / "s").rglob("*.json")]
        assert all(CLIENT_SECRET not in text for text in kept)


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
                browser = made.browser()
                done = await browser.followed(await browser.post(made.page))
            assert done.status_code == 400 and "ID token" in done.text, (wrong, done.text)
            assert made.under_way() == []
        assert made.place.events("register") == []
        browser = made.browser()
        done = await browser.followed(await browser.post(made.page))
        assert done.status_code == 200, done.text


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
        for metadata, told in WRONG_METADATA:
            with misled(idp, metadata=metadata):
                page = await made.browser().post(made.page)
            assert page.status_code == 400 and told in page.text, page.text
        assert made.under_way() == []


async def test_what_the_identity_provider_brings_is_good_for_its_browser_and_once(
    tmp_path: Path, idp: Provider
) -> None:
    async with team(tmp_path, idp) as made:

        async def comes_back() -> tuple[Browser, str]:
            browser = made.browser()
            await browser.followed(await browser.post(made.page), until=made.callback)
            return browser, browser.way[-1]

        # Eve has somebody else come back as her: his tokens would be hers.
        idp.sub = "eve"
        _, url = await comes_back()
        page = await made.browser().get(url)
        assert page.status_code == 400 and "another browser" in page.text
        browser, url = await comes_back()
        led = await browser.get(url)
        assert led.status_code == 303 and (await browser.get(url)).status_code == 400
        # Her second half is bound as the first one was.
        hers, his = await browser.followed(led, until=made.callback), made.browser()
        page = await his.get(urljoin(str(hers.url), hers.headers["location"]))
        assert page.status_code == 400 and "another browser" in page.text
        idp.iss = "https://evil.example"
        browser, url = await comes_back()
        page = await browser.get(url)
        assert page.status_code == 400 and "iss mismatch" in page.text
        assert await made.login_of("oauth:eve") is None and made.place.events("code") == []


async def test_behind_a_proxy_the_audience_says_where_browsers_are(tmp_path: Path, idp: Provider) -> None:
    oauth = idp.oauth("https://cellblock.example/mcp")
    async with site(tmp_path, http={"oauth": oauth}) as made:
        led = await made.browser().post(made.page, Origin="https://cellblock.example")
        assert led.status_code == 303
        asked = parse_qs(urlsplit(led.headers["location"]).query)
        assert asked["redirect_uri"] == ["https://cellblock.example/login/callback"]
        cookie = led.headers["set-cookie"]
        assert (
            cookie.startswith("__Host-cellblock_login=")
            and cookie.endswith("; Secure")
            and "Path=/;" in cookie
        )
        # The name without the prefix, which a neighbour could set, counts for nothing.
        state, secret = state_in(led.headers["location"]), cookie.partition("=")[2].partition(";")[0]
        page = await made.browser().get(
            f"{made.callback}?state={state}&code=x", Cookie=f"cellblock_login={secret}"
        )
        assert page.status_code == 400 and "another browser" in page.text


async def test_without_a_client_of_the_issuers_there_are_no_pages(tmp_path: Path, idp: Provider) -> None:
    async with team(tmp_path, idp, client_id=None, client_secret=None) as made:
        assert (await made.browser().get(made.page)).status_code == 401


async def test_a_name_that_a_proxy_knows_is_reached_by_tls(tmp_path: Path) -> None:
    async with site(tmp_path, http={"allowed_hosts": ["cellblock.example"]}) as made:
        mine = {"token": made.daemon.token or ""}
        sent = {"Host": "cellblock.example", "Origin": "https://cellblock.example"}
        led = await made.browser().post(made.page, mine, **sent)
        assert led.status_code == 303
        asked = parse_qs(urlsplit(led.headers["location"]).query)
        assert asked["redirect_uri"] == ["https://cellblock.example/login/callback"]
        assert led.headers["set-cookie"].startswith("__Host-")


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

            def there(url: str) -> str:
                return url.replace("http://127.0.0.1:1", origin)

            led = await browser.get(there(browser.way[-1]))
            assert led.status_code == 303, led.text
            back = await browser.followed(led, until="http://127.0.0.1:1/")
            done = await browser.get(there(back.headers["location"]))
            assert done.status_code == 200 and "oauth:ada is logged in" in done.text, done.text
            record = await first.login_of("oauth:ada")
            assert record is not None and record.tokens is not None
