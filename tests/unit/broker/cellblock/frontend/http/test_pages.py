"""Who gets the dashboard's pages, and for how long."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from cellblock.frontend.http.logins import CODE_SECONDS, COOKIE_SECONDS, MAX_CODES, MAX_COOKIES
from cellblock.frontend.http.page_parts import Page
from cellblock.frontend.http.pages import CODE_PATH, LOGIN_PATH, METRICS_PATH, STATE_PATH, Pages
from cellblock.telemetry.board import Board
from cellblock.telemetry.metrics import Metrics
from cellblock.telemetry.tally import Tally
from cellblock.telemetry.view import View


class Still:
    """A broker's facts."""

    def pool(self) -> dict[str, Any]:
        return {"capacity": 1, "running": 0, "queued": 0, "warm": 0, "booting": 0, "hostCount": 1}

    def upstreams(self) -> list[dict[str, Any]]:
        return []

    def knowledge(self) -> list[dict[str, Any]]:
        return []


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pages(clock: Clock) -> Pages:
    tally = Tally()
    return Pages(View(Still(), tally, Board(10), "1"), Metrics(tally, Still()), clock=clock)


def answer(pages: Pages, method: str, path: str, query: bytes) -> Page:
    return asyncio.run(pages.answer(method, path, query))


def code_of(pages: Pages) -> str:
    return json.loads(answer(pages, "POST", CODE_PATH, b"").body)["path"].partition("code=")[2]


def log_in(pages: Pages, code: str) -> tuple[int, dict[bytes, bytes]]:
    page = answer(pages, "GET", LOGIN_PATH, f"code={code}".encode())
    return page.status, dict(page.headers)


def login_of(pages: Pages) -> tuple[bytes, bytes]:
    """A new login's cookie and key."""
    status, headers = log_in(pages, code_of(pages))
    path, _, key = headers[b"location"].partition(b"#key=")
    assert (status, path) == (303, b"/dashboard") and len(key) == 43
    return headers[b"set-cookie"].split(b";")[0], key


def cookie_of(pages: Pages) -> bytes:
    return login_of(pages)[0]


def test_a_code_logs_in_once(pages: Pages) -> None:
    code = code_of(pages)
    status, headers = log_in(pages, code)
    assert status == 303
    cookie = headers[b"set-cookie"]
    for flag in (b"HttpOnly", b"SameSite=Strict", b"Path=/dashboard"):
        assert flag in cookie
    assert b"Secure" not in cookie
    assert pages.knows(STATE_PATH, cookie.split(b";")[0])
    status, headers = log_in(pages, code)
    assert status == 403 and b"set-cookie" not in headers


def test_over_tls_the_cookie_stays_there() -> None:
    pages = Pages(View(Still(), Tally(), Board(1), "1"), None, secure=True)
    assert b"; Secure" in log_in(pages, code_of(pages))[1][b"set-cookie"]


def test_codes_and_cookies_end(pages: Pages, clock: Clock) -> None:
    code = code_of(pages)
    clock.now += CODE_SECONDS + 1
    assert log_in(pages, code)[0] == 403
    cookie = cookie_of(pages)
    clock.now += COOKIE_SECONDS
    assert pages.knows(STATE_PATH, cookie)
    clock.now += 1
    assert not pages.knows(STATE_PATH, cookie)


def test_a_key_counts_with_its_own_cookie_alone(pages: Pages, clock: Clock) -> None:
    (cookie, key), (other, others_key) = login_of(pages), login_of(pages)
    who = pages.decider(cookie, key)
    assert who is not None and key.decode() not in who and cookie.decode() not in who
    assert pages.decider(other, others_key) not in (None, who)
    for wrong in (b"", b"x", key[:-1], key + b"x", others_key, cookie, b"\xff", b"%b, %b" % (key, key)):
        assert pages.decider(cookie, wrong) is None
    assert pages.decider(b"", key) is None
    assert pages.decider(cookie + b"; " + other, others_key) is not None
    clock.now += COOKIE_SECONDS + 1
    assert pages.decider(cookie, key) is None


@pytest.mark.parametrize(
    "cookie",
    [b"", b"cellblock_dashboard=", b"cellblock_dashboard=x", b"x=y; cellblock_dashboard", b"\xff\xfe;=;;"],
)
def test_other_cookies_open_nothing(pages: Pages, cookie: bytes) -> None:
    cookie_of(pages)
    assert not pages.knows(STATE_PATH, cookie)


def test_a_cookie_among_others_opens_reading_alone(pages: Pages) -> None:
    cookies = b"a=b; " + cookie_of(pages) + b"; c=d"
    assert pages.knows("/dashboard", cookies)
    assert not pages.knows(CODE_PATH, cookies)
    assert not pages.knows(METRICS_PATH, cookies)


def test_codes_and_cookies_are_bounded(pages: Pages) -> None:
    codes = [code_of(pages) for _ in range(MAX_CODES + 1)]
    assert log_in(pages, codes[0])[0] == 403
    assert log_in(pages, codes[-1])[0] == 303
    cookies = [cookie_of(pages) for _ in range(MAX_COOKIES + 1)]
    assert not pages.knows(STATE_PATH, cookies[0])
    assert pages.knows(STATE_PATH, cookies[-1])


@pytest.mark.parametrize("path", ["/dashboard", STATE_PATH, "/dashboard/runs/x", METRICS_PATH, LOGIN_PATH])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(pages: Pages, path: str, method: str) -> None:
    assert answer(pages, method, path, b"").status == 405


def test_a_code_is_not_given_to_a_link(pages: Pages) -> None:
    assert answer(pages, "GET", CODE_PATH, b"").status == 405


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/app.js", "/dashboard/app.css", STATE_PATH])
def test_every_page_is_guarded_by_its_headers(pages: Pages, path: str) -> None:
    page = answer(pages, "GET", path, b"")
    headers = dict(page.headers)
    assert page.status == 200
    policy = headers[b"content-security-policy"].decode()
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"cache-control"] == b"no-store"


def test_the_page_needs_nothing_from_elsewhere(pages: Pages) -> None:
    for path in ("/dashboard", "/dashboard/app.js", "/dashboard/app.css"):
        text = answer(pages, "GET", path, b"").body.decode()
        assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("// ", "")
        assert "innerHTML" not in text and "onclick" not in text and "<style" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/dashboard/parked",
        "/dashboard/../mcp",
        "/dashboard/runs/",
        "/dashboard/runs/../state",
        "/dashboard/x",
    ],
)
def test_unknown_paths(pages: Pages, path: str) -> None:
    assert answer(pages, "GET", path, b"").status == 404


def test_what_is_off_has_no_path() -> None:
    only_metrics = Pages(None, Metrics(Tally(), Still()), open_metrics=True)
    assert only_metrics.has(METRICS_PATH) and not only_metrics.has("/dashboard")
    assert only_metrics.is_open(METRICS_PATH)
    no_metrics = Pages(View(Still(), Tally(), Board(1), "1"), None)
    assert no_metrics.has("/dashboard") and not no_metrics.has(METRICS_PATH)
    assert not no_metrics.has("/dashboards")
