"""Who gets the dashboard's pages, and for how long; what it says of runs that wait, and which decisions it takes."""

import asyncio
import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, cast

import pytest
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Router

from cellblock.base.database import StoreError
from cellblock.base.questions import Answer, QuestionId
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
from cellblock.serve.http.token import OwnTokens
from cellblock.serve.http.waiting_runs import NotAnswered, WaitingRuns
from support.asgi import ask
from support.still_broker import StillBroker


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
    return pages_of(parked=Waiting(), clock=clock)


def answer(pages: Pages, method: str, path: str, *, token: bool = True, **headers: str) -> Response:
    """An answer to whoever has the token, or has shown these headers alone."""
    authenticator = Authenticator(None if token else OwnTokens(["x" * 43]))

    def browser(logins: Logins) -> list[Middleware]:
        return [Middleware(Guarded, signed_in(logins, authenticator))]

    owner = [Middleware(Guarded, authenticator.authenticate)]
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


def test_a_key_counts_with_its_own_cookie_until_that_ends(pages: Pages, clock: Clock) -> None:
    """Wrong keys, and those of other cookies, are shown to a daemon in `tests/security/test_dashboard.py`."""
    (cookie, key), (other, others_key) = login_of(pages), login_of(pages)
    cases = [(cookie, key), (f"{cookie}; {other}", others_key), (cookie, "\xff")]
    assert [decides(pages, *one) for one in cases] == [True, True, False]
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


SEES = "browser 01"


class Waiting(WaitingRuns):
    """One run, `a1`, whose calls 1 and 2 wait."""

    def __init__(self, *, fails: bool = False, shows: bool = False) -> None:
        nothing: Any = None
        super().__init__(nothing, nothing, nothing, shows_inputs=shows)
        self.done: list[Any] = []
        self.fails = fails

    async def waiting(self, *, inputs: bool) -> list[dict[str, Any]]:
        if self.fails:
            raise StoreError("the disk is full")
        return [{"id": "a1", "inputs": inputs}]

    async def answer(
        self,
        run_id: str,
        answer: Answer,
        calls: Sequence[QuestionId] | None,
        by: str,
        form: Any = None,
    ) -> Any:
        if self.fails:
            raise StoreError("the disk is full")
        if run_id != "a1":
            return None
        if calls is not None and not {call.call for call in calls} <= {1, 2}:
            raise Refused(HTTPStatus.CONFLICT)
        if form == {}:
            raise NotAnswered("It does not fit: <name>.")
        self.done.append((answer, calls, by, *([] if form is None else [form])))
        return {"id": run_id}

    async def cancel(self, run_id: str, by: str) -> bool:
        self.done.append(("cancel", by))
        return run_id == "a1"


def decided(runs: Waiting, path: str, body: bytes = b"") -> int:
    """The status of a decision."""
    try:
        assert asyncio.run(runs.decided(path, SEES, body)) == {"id": "a1"}
    except Refused as refused:
        return refused.status_code
    return 200


@pytest.mark.parametrize(
    ("shows", "by", "inputs"), [(False, None, False), (False, SEES, True), (True, None, True)]
)
async def test_inputs_are_for_who_may_decide_or_for_all(shows: bool, by: str | None, inputs: bool) -> None:
    assert await Waiting(shows=shows).listed(by) == {
        "runs": [{"id": "a1", "inputs": inputs}],
        "decides": by is not None,
    }


async def test_a_list_that_cannot_be_read_says_why() -> None:
    assert await Waiting(fails=True).listed(SEES) == {
        "runs": [],
        "decides": True,
        "error": "the disk is full",
    }


@pytest.mark.parametrize(
    ("path", "body", "done"),
    [
        ("a1/approve", b"", ("accepted", None, SEES)),
        ("a1/approve", b"{}", ("accepted", None, SEES)),
        ("a1/approve", b'{"calls": [2]}', ("accepted", [QuestionId(2)], SEES)),
        ("a1/approve", b'{"calls": ["2.1001"]}', ("accepted", [QuestionId(2, 1001)], SEES)),
        ("a1/deny", b'{"calls": [1, 2]}', ("declined", [QuestionId(1), QuestionId(2)], SEES)),
        ("a1/cancel", b"{}", ("cancel", SEES)),
        ("a1/approve", b'{"calls": [2], "form": {"n": 1}}', ("accepted", [QuestionId(2)], SEES, {"n": 1})),
        ("a1/approve", b'{"calls": [2], "always": true}', ("always", [QuestionId(2)], SEES)),
        ("a1/deny", b'{"always": true}', ("declined", None, SEES)),
    ],
)
def test_what_is_decided(path: str, body: bytes, done: Any) -> None:
    runs = Waiting()
    assert decided(runs, path, body) == 200
    assert runs.done == [done]


def test_an_answer_that_is_not_written_down_is_not_taken() -> None:
    assert decided(Waiting(fails=True), "a1/approve") == 503


def test_a_form_that_does_not_fit_says_why() -> None:
    with pytest.raises(NotAnswered, match="It does not fit: <name>"):
        decided(Waiting(), "a1/approve", b'{"calls": [1], "form": {}}')


NO_CHOICE = [
    b"x",
    b"[]",
    b"null",
    b'"calls"',
    b'{"call": [1]}',
    b'{"calls": []}',
    b'{"calls": null}',
    b'{"always": 1}',
    b'{"calls": 1}',
    b'{"calls": ["one"]}',
    b'{"calls": [true]}',
    b'{"calls": [1.0]}',
    b'{"calls": [-1]}',
    b'{"calls": [1e400]}',
    b'{"calls": [' + b"9" * 5000 + b"]}",
    b"[" * 16_000,
    b"\xff",
]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        *((f"a1/{word}", body, 400) for word in ("approve", "deny", "cancel") for body in NO_CHOICE),
        *(("a1/approve", body, 400) for body in (b'{"form": []}', b'{"form": 1, "calls": [1]}')),
        ("a1/cancel", b'{"form": {"n": 1}}', 400),
        # To cancel single calls would end the others.
        ("a1/cancel", b'{"calls": [1]}', 400),
        # A call that does not wait.
        ("a1/approve", b'{"calls": [1, 3]}', 409),
        *((path, b"", 404) for path in ("a2/approve", "a1/allow", "a1", "/approve", "a1/approve/")),
    ],
)
def test_anything_else_decides_nothing(path: str, body: bytes, status: int) -> None:
    runs = Waiting()
    assert decided(runs, path, body) == status
    assert runs.done == []


def test_a_run_that_is_not_there_is_not_cancelled() -> None:
    assert decided(Waiting(), "a2/cancel") == 404
