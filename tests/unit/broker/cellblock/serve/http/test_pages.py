"""Who gets the dashboard's pages, and for how long."""

import asyncio
import json
from typing import Any, cast

import pytest
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Scope

from cellblock.observe.facts import View
from cellblock.observe.metrics import Tally
from cellblock.run.board import Board
from cellblock.serve.http.caller import Authenticator
from cellblock.serve.http.guards import LOGIN_PATH, Guarded
from cellblock.serve.http.pages import (
    CODE_PATH,
    CODE_SECONDS,
    COOKIE_SECONDS,
    MAX_CODES,
    MAX_COOKIES,
    METRICS_PATH,
    STATE_PATH,
    Logins,
    Pages,
    signed_in,
)
from cellblock.serve.http.refusal import Refusals, Refused
from support.asgi import ask
from support.still_broker import StillBroker


class NothingWaits:
    async def listed(self, by: str | None) -> dict[str, Any]:
        return {"runs": [], "decides": by is not None}


class NothingKept:
    async def run(self, run_id: str) -> None:
        return None


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pages_of(**options: Any) -> Pages:
    facts, tally = StillBroker(), Tally()
    view = View(facts, tally, Board(10), "1")
    return Pages(facts, tally, view, cast(Any, NothingKept()), "runs", lambda: lambda value: value, **options)


@pytest.fixture
def pages(clock: Clock) -> Pages:
    return pages_of(parked=cast(Any, NothingWaits()), clock=clock)


class NoToken:
    async def verify_token(self, token: str) -> None:
        return None


async def refusing(_: Scope) -> None:
    """Stands in front of what the token alone opens."""
    raise Refused(401)


def answer(pages: Pages, method: str, path: str, *, token: bool = True, **headers: str) -> Response:
    """An answer to whoever has the token, or has shown these headers alone."""
    authenticator = Authenticator(None if token else NoToken())

    def browser(logins: Logins) -> list[Middleware]:
        return [Middleware(Guarded, signed_in(logins, authenticator))]

    owner = [] if token else [Middleware(Guarded, refusing)]
    routes = pages.routes(public=[], token=owner, owner=owner, browser=browser, decision=[])
    app = Refusals(Router(routes, redirect_slashes=False))
    return asyncio.run(ask(app, method, path, caller=None, **headers))


def code_of(pages: Pages) -> str:
    return json.loads(answer(pages, "POST", CODE_PATH).body)["path"].partition("code=")[2]


def log_in(pages: Pages, code: str) -> tuple[int, MutableHeaders]:
    page = answer(pages, "GET", f"{LOGIN_PATH}?code={code}", token=False)
    return page.status_code, page.headers


def login_of(pages: Pages) -> tuple[str, str]:
    """A new login's cookie and key."""
    status, headers = log_in(pages, code_of(pages))
    path, _, key = headers["refresh"].partition("#key=")
    assert (status, path) == (200, "0; url=/dashboard") and len(key) == 43
    return headers["set-cookie"].split(";")[0], key


def cookie_of(pages: Pages) -> str:
    return login_of(pages)[0]


def knows(pages: Pages, cookie: str) -> bool:
    return answer(pages, "GET", STATE_PATH, token=False, cookie=cookie).status_code != 401


def decides(pages: Pages, cookie: str, key: str) -> bool:
    """Whether a cookie and a key are of one login, which may decide."""
    page = answer(pages, "GET", "/dashboard/parked", token=False, cookie=cookie, x_cellblock_key=key)
    return page.status_code == 200 and json.loads(page.body)["decides"]


def test_a_code_logs_in_once(pages: Pages) -> None:
    code = code_of(pages)
    status, headers = log_in(pages, code)
    cookie, *flags = headers["set-cookie"].split("; ")
    assert (status, {*flags}) == (
        200,
        {"HttpOnly", "SameSite=strict", "Path=/dashboard", f"Max-Age={COOKIE_SECONDS}"},
    )
    assert knows(pages, cookie)
    status, headers = log_in(pages, code)
    assert status == 403 and "set-cookie" not in headers


def test_over_tls_the_cookie_stays_there() -> None:
    pages = pages_of(secure=True)
    assert "; Secure" in log_in(pages, code_of(pages))[1]["set-cookie"]


def test_codes_and_cookies_end(pages: Pages, clock: Clock) -> None:
    code = code_of(pages)
    clock.now += CODE_SECONDS + 1
    assert log_in(pages, code)[0] == 403
    cookie = cookie_of(pages)
    clock.now += COOKIE_SECONDS
    assert knows(pages, cookie)
    clock.now += 1
    assert not knows(pages, cookie)


def test_a_key_counts_with_its_own_cookie_alone(pages: Pages, clock: Clock) -> None:
    (cookie, key), (other, others_key) = login_of(pages), login_of(pages)
    assert decides(pages, cookie, key) and decides(pages, other, others_key)
    for wrong in ("", "x", key[:-1], key + "x", others_key, cookie, "\xff", f"{key}, {key}"):
        assert not decides(pages, cookie, wrong)
    assert not decides(pages, "", key)
    assert decides(pages, f"{cookie}; {other}", others_key)
    clock.now += COOKIE_SECONDS + 1
    assert not decides(pages, cookie, key)


@pytest.mark.parametrize(
    "cookie",
    ["", "cellblock_dashboard=", "cellblock_dashboard=x", "x=y; cellblock_dashboard", "\xff\xfe;=;;"],
)
def test_other_cookies_open_nothing(pages: Pages, cookie: str) -> None:
    cookie_of(pages)
    assert not knows(pages, cookie)


def test_codes_and_cookies_are_bounded(pages: Pages) -> None:
    codes = [code_of(pages) for _ in range(MAX_CODES + 1)]
    assert [log_in(pages, code)[0] for code in codes] == [403] + [200] * MAX_CODES
    cookies = [cookie_of(pages) for _ in range(MAX_COOKIES + 1)]
    assert [knows(pages, cookie) for cookie in cookies] == [False] + [True] * MAX_COOKIES


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/app.js", "/dashboard/app.css", STATE_PATH])
def test_every_page_is_guarded_by_its_headers(pages: Pages, path: str) -> None:
    page = answer(pages, "GET", path)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    named = ("x-content-type-options", "cache-control")
    assert (page.status_code, *map(page.headers.get, named)) == (200, "nosniff", "no-store")


def test_the_page_needs_nothing_from_elsewhere(pages: Pages) -> None:
    for path in ("/dashboard", "/dashboard/app.js", "/dashboard/app.css"):
        text = bytes(answer(pages, "GET", path).body).decode()
        assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("// ", "")
        assert "innerHTML" not in text and "onclick" not in text and "<style" not in text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(
            (method, path, 405)
            for method in ("POST", "PUT", "DELETE")
            for path in ("/dashboard", STATE_PATH, "/dashboard/runs/x", METRICS_PATH, LOGIN_PATH)
        ),
        # A code is not given to a link.
        ("GET", CODE_PATH, 405),
        *(("GET", f"/dashboard/{path}", 404) for path in ("../mcp", "runs/", "runs/../state", "x")),
    ],
)
def test_nothing_can_be_changed_and_nothing_else_is_there(
    pages: Pages, method: str, path: str, status: int
) -> None:
    assert answer(pages, method, path).status_code == status
