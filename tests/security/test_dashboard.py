"""Hostile pages and programs against the dashboard and the metrics of a real daemon: a bare 401 or 403. Forged and
foreign decisions about a run that waits: none of them does anything. And a hostile page in the browser of somebody who
has the dashboard open: it frames, reads, forges and stores nothing."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import WHERE_FROM, browser, browser_path
from support.commands import cellblock
from support.http_daemon import MCP_HEADERS, Daemon, daemon
from support.http_server import Answering, serving
from support.parked_runs import WAITING, login, parked, waiting

PATHS = ("/dashboard", "/dashboard/state", "/dashboard/runs/x", "/dashboard/app.js", "/metrics")


@pytest.fixture(scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path_factory.mktemp("dashboard")) as running:
        yield running


@pytest.mark.parametrize("path", PATHS)
async def test_not_without_the_token(plain: Daemon, path: str) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer " + "x" * 43},
        {"Cookie": "cellblock_dashboard=" + "x" * 43},
    ):
        answer = await plain.ask("GET", path, headers=headers)
        assert answer.status == 401
        # A person who opens the page is told how to sign in; nobody is told more.
        assert b"cellblock dashboard" in answer.body and len(answer.body) < 600
    assert (await plain.ask("GET", path, headers=plain.auth)).status == (404 if path.endswith("/x") else 200)


@pytest.mark.parametrize("path", [*PATHS, "/dashboard/login?code=x"])
async def test_not_from_a_hostile_page(plain: Daemon, path: str) -> None:
    known = {"Cookie": (await login(plain))[0]}
    for headers in (
        {"Host": f"evil.example:{plain.port}"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answer = await plain.ask("GET", path, headers={**known, **headers})
        assert (answer.status, answer.body) == (403, b""), headers
    tab = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate"}
    answer = await plain.ask("GET", path, headers={**known, **tab})
    assert (b"code" in answer.body) == path.startswith("/dashboard/login")


async def test_a_cookie_reads_the_dashboard_and_nothing_else(plain: Daemon) -> None:
    cookie = {"Cookie": (await login(plain))[0]}
    for method, path, body, status in (
        ("GET", "/dashboard/state", None, 200),
        ("GET", "/metrics", None, 401),
        ("POST", "/dashboard/code", b"", 401),
        ("POST", "/mcp", None, 401),
        ("POST", "/dashboard/state", b"{}", 405),
    ):
        answer = await plain.ask(method, path, headers={**MCP_HEADERS, **cookie}, body=body)
        assert answer.status == status, path


async def test_a_code_opens_once(plain: Daemon) -> None:
    code = await plain.ask("POST", "/dashboard/code", headers=plain.auth, body=b"")
    paths = [json.loads(code.body)["path"]] * 2 + ["/dashboard/login"]
    assert [(await plain.ask("GET", path)).status for path in paths] == [200, 403, 403]


async def test_what_is_off_is_not_there(tmp_path: Path) -> None:
    off = {"enabled": False}
    async with daemon(tmp_path, dashboard=off, metrics={"token": False}, pool={"warm": 0}) as served:
        assert (await served.ask("GET", "/dashboard", headers=served.auth)).status == 404
        open_metrics = await served.ask("GET", "/metrics")
        assert open_metrics.status == 200 and b"cellblock_pool_places 16.0" in open_metrics.body


async def test_the_audit_log_of_a_daemon_names_no_session(tmp_path: Path) -> None:
    async with daemon(tmp_path) as served, served.client("legacy") as client:
        await client.call_tool("codemode.run", {"code": "1"})
        state = json.loads((await served.ask("GET", "/dashboard/state", headers=served.auth)).body)
        (run,) = state["recent"]
        assert run["client"].startswith("http session ")
    began, ended = map(json.loads, (tmp_path / "s" / "audit.jsonl").read_text().splitlines())
    assert (began["event"], ended["event"], began["client"]) == ("run", "run_end", run["client"])
    # 16 characters of a hash: the session's id would let its reader in.
    assert len(run["client"]) == len("http session ") + 16


CODE = 'import { echo } from "@codemode/servers/plain"; await echo({ text: "not to be sent" })'


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path_factory.mktemp("parked"), **WAITING) as running:
        yield running


@pytest.fixture(scope="module")
async def run_id(served: Daemon) -> str:
    return await parked(served, CODE)


@pytest.fixture
async def nothing_happens(served: Daemon, run_id: str) -> AsyncIterator[None]:
    before = await waiting(served, run_id)
    yield
    assert before is not None and await waiting(served, run_id) == before
    assert not served.ledger.exists() or '"call"' not in served.ledger.read_text()


undecided = pytest.mark.usefixtures("nothing_happens")


async def decision(served: Daemon, run_id: str, status: int, headers: dict[str, str]) -> None:
    for word in ("approve", "deny", "cancel"):
        path = f"/dashboard/parked/{run_id}/{word}"
        answer = await served.ask("POST", path, headers=headers, body=b"{}")
        assert answer.status == status, (word, headers, answer)


ORIGIN = "http://127.0.0.1:{port}"
MINE = {"Cookie": "{cookie}", "X-Cellblock-Key": "{key}"}
TOKEN = {"Authorization": "Bearer {token}"}
WRONG_TOKEN = {"Authorization": "Bearer " + "x" * 43}
WRONG_KEYS = ("", "x" * 43, "{others_key}", "{part_of_key}", "{key}x", "{secret_of_cookie}")
HOSTILE_PAGES = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:{next_port}"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Host": "evil.example:{port}"},
    {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"},
)
FORGED = [
    # A cookie alone, also from our own page.
    (403, {"Cookie": "{cookie}"}),
    (403, {"Cookie": "{cookie}", "Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}),
    *((403, {**MINE, "X-Cellblock-Key": wrong}) for wrong in WRONG_KEYS),
    (403, {**MINE, "X-Cellblock-Key": "{key}\r\nX-Cellblock-Key: {key}"}),
    # A key without its cookie.
    (401, {"X-Cellblock-Key": "{key}"}),
    (403, {**MINE, "Cookie": "{others_cookie}"}),
    (401, {**MINE, "Cookie": "cellblock_dashboard={key}"}),
    *((403, {**known, **page}) for page in HOSTILE_PAGES for known in (MINE, TOKEN)),
    # A stranger, and a wrong token.
    (401, {}),
    (401, WRONG_TOKEN),
    (401, {**WRONG_TOKEN, "Cookie": "{cookie}"}),
]


@undecided
async def test_a_forged_or_foreign_decision_does_nothing(served: Daemon, run_id: str) -> None:
    (cookie, key), (others_cookie, others_key) = await login(served), await login(served)
    words = {
        **{"cookie": cookie, "secret_of_cookie": cookie.partition("=")[2], "others_cookie": others_cookie},
        **{"key": key, "part_of_key": key[:-1], "others_key": others_key, "token": served.token},
        **{"port": served.port, "next_port": served.port + 1},
    }
    for status, headers in FORGED:
        filled = {name: value.format_map(words) for name, value in headers.items()}
        await decision(served, run_id, status, filled)
    assert (await served.ask("GET", "/dashboard/parked")).status == 401


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
@undecided
async def test_only_post_decides(served: Daemon, run_id: str, method: str) -> None:
    cookie, key = await login(served)
    for headers in ({"Cookie": cookie, "X-Cellblock-Key": key}, served.auth):
        for word in ("approve", "deny", "cancel"):
            path = f"/dashboard/parked/{run_id}/{word}"
            answer = await served.ask(method, path, headers={**headers, "Content-Length": "0"}, body=b"")
            assert answer.status == 405


@undecided
async def test_a_named_token_sees_and_decides_nothing(served: Daemon, run_id: str) -> None:
    made = await cellblock("token", "create", "ci", "--state-dir", served.folder / "s", code=0)
    named = {"Authorization": f"Bearer {made.out.split()[-1]}"}
    await decision(served, run_id, 403, named)
    assert (await served.ask("GET", "/dashboard/parked", headers=named)).status == 403


@undecided
async def test_a_large_body_is_not_read(served: Daemon, run_id: str) -> None:
    path = f"/dashboard/parked/{run_id}/approve"
    for size in (16 * 1024 + 1, 1 << 40):
        headers = {**served.auth, "Content-Length": str(size)}
        assert (await served.ask("POST", path, headers=headers, body=b"{}")).status == 413
    chunk = b"4001\r\n" + b" " * 0x4001 + b"\r\n0\r\n\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nTransfer-Encoding: chunked\r\n"
    head += f"Authorization: Bearer {served.token}\r\n\r\n"
    answer = await served.raw(head.encode() + chunk)
    assert answer is not None and answer.status == 413


@undecided
async def test_inputs_are_not_for_a_cookie_alone(served: Daemon, run_id: str) -> None:
    cookie, key = await login(served)
    looks = await served.ask("GET", "/dashboard/parked", headers={"Cookie": cookie})
    assert b"not to be sent" not in looks.body and json.loads(looks.body)["decides"] is False
    for headers in (
        {"Cookie": cookie, "X-Cellblock-Key": key},
        {"Cookie": cookie, **served.auth},
        served.auth,
    ):
        decides = await served.ask("GET", "/dashboard/parked", headers=headers)
        assert b"not to be sent" in decides.body and json.loads(decides.body)["decides"] is True


@undecided
async def test_nothing_of_a_login_is_logged(tmp_path: Path) -> None:
    async with daemon(tmp_path, **WAITING, log={"level": "debug", "file": str(tmp_path / "log")}) as own:
        cookie, key = await login(own)
        run = await parked(own, CODE)
        headers = {"Cookie": cookie, "X-Cellblock-Key": key}
        denied = await own.ask("POST", f"/dashboard/parked/{run}/deny", headers=headers, body=b"")
        assert denied.status == 200
    said = (tmp_path / "log").read_text() + (tmp_path / "s" / "audit.jsonl").read_text()
    assert run in said and "declined" in said
    assert key not in said and cookie.partition("=")[2] not in said


@undecided
async def test_where_there_is_no_token_a_login_is_needed(tmp_path: Path) -> None:
    async with daemon(tmp_path, "--no-auth", **WAITING) as own:
        run = await parked(own, CODE)
        await decision(own, run, 403, {})
        assert b"not to be sent" not in (await own.ask("GET", "/dashboard/parked")).body
        cookie, key = await login(own)
        headers = {"Cookie": cookie, "X-Cellblock-Key": key}
        assert (
            await own.ask("POST", f"/dashboard/parked/{run}/deny", headers=headers, body=b"")
        ).status == 200


ATTACKS = """async (url) => {
    const tried = {};
    const attempt = async (name, work) => {
        try { tried[name] = await work(); } catch (error) { tried[name] = `${error}`.slice(0, 40); }
    };
    const credentials = "include";
    await attempt("read", async () => (await fetch(`${url}/dashboard/state`, { credentials })).status);
    await attempt("read blindly", async () =>
        (await fetch(`${url}/dashboard/state`, { credentials, mode: "no-cors" })).type);
    for (const path of ["dashboard/parked/x/approve", "dashboard/code", "servers/plain", "mcp"]) {
        await attempt(`forge ${path}`, async () =>
            (await fetch(`${url}/${path}`, { method: "POST", credentials, mode: "no-cors", body: "{}" })).type);
    }
    await attempt("frame", () => new Promise((done) => {
        const frame = document.createElement("iframe");
        frame.onload = () => {
            try { done(`${frame.contentDocument?.body?.innerText}`); } catch (error) { done("closed"); }
        };
        frame.src = `${url}/dashboard`;
        document.body.append(frame);
    }));
    await attempt("script", () => new Promise((done) => {
        const script = document.createElement("script");
        script.onload = () => done("ran");
        script.onerror = () => done("refused");
        script.src = `${url}/dashboard/app.js`;
        document.body.append(script);
    }));
    return tried;
}"""


class Evil(Answering):
    def do_GET(self) -> None:
        self.answer(200, b"<!doctype html><title>evil</title>", Content_Type="text/html")


@pytest.mark.thorough
@pytest.mark.skipif(browser_path() is None, reason=WHERE_FROM)
async def test_of_another_origin_nothing_is_read_framed_or_forged(tmp_path: Path) -> None:
    async with daemon(tmp_path, auth={"keyring": "off"}) as served, browser() as chromium:
        url = served.url.removesuffix("/mcp")
        context: Any = await chromium.new_context()
        context.set_default_timeout(60_000)
        code = await served.ask("POST", "/dashboard/code", headers=served.auth, body=b"")
        page = await context.new_page()
        await page.goto(url + json.loads(code.body)["path"])
        await page.locator("#upstreams tr", has_text="plain").wait_for()
        assert await page.evaluate("[document.cookie, { ...localStorage }]") == ["", {}]
        # It asks now and then, which is allowed.
        await page.close()
        statuses: dict[str, int] = {}

        def answered(answer: Any) -> None:
            statuses[answer.url.removeprefix(url)] = answer.status

        context.on("response", answered)
        # The same site by its address, so that the cookie is sent where a browser would send it at all.
        with serving(Evil) as address:
            for place in (address, address.replace("127.0.0.1", "localhost")):
                hostile = await context.new_page()
                await hostile.goto(f"http://{place}/")
                tried = await hostile.evaluate(ATTACKS, url)
                assert tried["read"].startswith("TypeError") and tried["script"] == "refused", tried
                assert "plain" not in tried["frame"], tried
        forged = {path: status for path, status in statuses.items() if path.startswith("/")}
        assert len(forged) >= 5 and set(forged.values()) <= {401, 403}, forged
