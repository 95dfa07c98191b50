"""Hostile pages and programs against the dashboard and the metrics of a real daemon: a bare 401 or 403."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.http_daemon import MCP_HEADERS, Daemon, daemon

PATHS = ("/dashboard", "/dashboard/state", "/dashboard/runs/x", "/dashboard/app.js", "/metrics")


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path_factory.mktemp("dashboard")) as running:
        yield running


async def cookie_of(served: Daemon) -> str:
    code = await served.ask("POST", "/dashboard/code", headers=served.auth, body=b"")
    login = await served.ask("GET", json.loads(code.body)["path"])
    return login.headers["set-cookie"].split(";")[0]


@pytest.mark.parametrize("path", PATHS)
async def test_not_without_the_token(served: Daemon, path: str) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer " + "x" * 43},
        {"Cookie": "cellblock_dashboard=" + "x" * 43},
    ):
        answer = await served.ask("GET", path, headers=headers)
        assert answer.status == 401
        # A person who opens the page is told how to sign in; nobody is told more.
        assert b"cellblock dashboard" in answer.body and len(answer.body) < 600
    assert (await served.ask("GET", path, headers=served.auth)).status == (
        404 if path.endswith("/x") else 200
    )


@pytest.mark.parametrize("path", [*PATHS, "/dashboard/login?code=x"])
async def test_not_from_a_hostile_page(served: Daemon, path: str) -> None:
    known = {"Cookie": await cookie_of(served)}
    for headers in (
        {"Host": f"evil.example:{served.port}"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answer = await served.ask("GET", path, headers={**known, **headers})
        assert (answer.status, answer.body) == (403, b""), headers
    tab = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate"}
    answer = await served.ask("GET", path, headers={**known, **tab})
    assert (b"code" in answer.body) == path.startswith("/dashboard/login")


async def test_a_cookie_reads_the_dashboard_and_nothing_else(served: Daemon) -> None:
    cookie = {"Cookie": await cookie_of(served)}
    for method, path, body, status in (
        ("GET", "/dashboard/state", None, 200),
        ("GET", "/metrics", None, 401),
        ("POST", "/dashboard/code", b"", 401),
        ("POST", "/mcp", None, 401),
        ("POST", "/dashboard/state", b"{}", 405),
    ):
        answer = await served.ask(method, path, headers={**MCP_HEADERS, **cookie}, body=body)
        assert answer.status == status, path


async def test_a_code_opens_once(served: Daemon) -> None:
    code = await served.ask("POST", "/dashboard/code", headers=served.auth, body=b"")
    paths = [json.loads(code.body)["path"]] * 2 + ["/dashboard/login"]
    assert [(await served.ask("GET", path)).status for path in paths] == [200, 403, 403]


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
    lines = (tmp_path / "s" / "audit.jsonl").read_text().splitlines()
    began, ended = map(json.loads, lines)
    assert (began["event"], ended["event"], began["client"]) == ("run", "run_end", run["client"])
    # 16 characters of a hash: the session's id would let its reader in.
    assert len(run["client"]) == len("http session ") + 16
