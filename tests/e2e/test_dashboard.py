"""The dashboard of a real daemon, by raw HTTP and in a real browser: signing in, looking, keys, colours, hostile
texts, and runs that wait for a person, answered there.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from cellblock.base.browser import open_privately
from cellblock.base.settings.server import AuthSettings
from cellblock.base.store import LocalStore
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.store import LoginStore
from support.browser import WHERE_FROM, browser, browser_path
from support.commands import cellblock
from support.entries import entry, forked_server, ledger, plain_server
from support.http_daemon import TOOL, Daemon, daemon
from support.parked_runs import WAITING, ended, login, parked, waiting
from support.waits import until, within

pytestmark = pytest.mark.thorough

BOUND_MS = 30_000

SECRET = "k3y-of-the-upstream-server"

ATTACK = '<img src=x onerror="window.owned=1">'

TWO = (
    'import { echo } from "@codemode/servers/plain";'
    ' const done = await Promise.allSettled(["one", "two"].map((text) => echo({ text })));'
    " console.log(done.map((one) => one.status).join());"
)

REMOVES = 'import { remove } from "@codemode/servers/files"; await remove({ path: "/notes" });'

needs_browser = pytest.mark.skipif(browser_path() is None, reason=WHERE_FROM)


def tools(folder: Path) -> dict[str, Any]:
    """A server with a tool that destroys."""
    tool = {"name": "remove", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": True}}
    definitions = folder / "files.json"
    definitions.write_text(json.dumps({"pages": [[tool]]}))
    return plain_server(
        *("--definitions", definitions, "--ledger", folder / "files.jsonl"), env={"API_KEY": SECRET}
    )


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    folder = tmp_path_factory.mktemp("parked")
    asking = entry(forked_server("asking_server.py", "stdio", "--older"))
    async with daemon(folder, servers={"files": tools(folder), "asking": asking}, **WAITING) as running:
        yield running


def called(file: Path, text: str) -> int:
    """How often a server was called with an input that has this text."""
    return sum(text in json.dumps(line) for line in ledger(file) if line["event"] == "call")


def decisions_of(served: Daemon, run_id: str) -> list[dict[str, Any]]:
    """The decisions on a run that the audit log has."""
    lines = ledger(served.folder / "s" / "audit.jsonl")
    return [line for line in lines if line["event"] == "decision" and line["run"] == run_id]


async def decide(
    served: Daemon, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    answer = await served.ask("POST", f"/dashboard/parked/{path}", headers=headers or served.auth, body=data)
    return answer.status, json.loads(answer.body) if answer.body else None


# ---- by raw HTTP -----------------------------------------------------------------------------------------


async def test_a_run_goes_on_when_each_call_is_answered(served: Daemon) -> None:
    run_id = await parked(served, TWO)
    run = await waiting(served, run_id)
    assert run["principal"] == "token" and run["since"] < run["until"]
    facts = ("call", "server", "tool", "destructive")
    assert [(*map(one.get, facts), json.loads(one["input"])) for one in run["questions"]] == [
        (1, "plain", "echo", False, {"text": "one"}),
        (2, "plain", "echo", False, {"text": "two"}),
    ]
    said = {"id": run_id, "verdict": "declined", "calls": ["2"], "left": ["1"]}
    assert await decide(served, f"{run_id}/deny", {"calls": [2]}) == (200, said)
    assert [one["call"] for one in (await waiting(served, run_id))["questions"]] == [1]
    assert (await decide(served, f"{run_id}/approve", {"calls": [2]}))[0] == 409
    cookie, key = await login(served)
    browser_of = {"Cookie": cookie, "X-Cellblock-Key": key}
    assert (await decide(served, f"{run_id}/approve", headers=browser_of))[1]["left"] == []
    assert "fulfilled,rejected" in json.dumps((await ended(served, run_id))["logs"])
    assert (await decide(served, f"{run_id}/approve"))[0] == 404
    assert [called(served.ledger, text) for text in ("one", "two")] == [1, 0]
    # The audit log is written beside the answer.
    await until(lambda: len(decisions_of(served, run_id)) >= 2, "both decisions are in the audit log")
    decisions = decisions_of(served, run_id)
    assert [(line["verdict"], line["calls"]) for line in decisions] == [("declined", [2]), ("accepted", [1])]
    assert decisions[0]["by"] == "token" and decisions[1]["by"].startswith("browser ")


async def test_a_run_that_waits_is_no_failure_and_ends_when_it_is_cancelled(served: Daemon) -> None:
    run_id = await parked(served, TWO.replace("one", "later"))
    state = json.loads((await served.ask("GET", "/dashboard/state", headers=served.auth)).body)
    assert state["runs"]["byOutcome"]["parked"] >= 1
    (mine,) = [run for run in state["recent"] if run["id"] == run_id]
    assert mine["outcome"] == "parked" and sum(failed for _, failed in state["perSecond"]) == 0
    metrics = await served.ask("GET", "/metrics", headers=served.auth)
    assert b'cellblock_runs_total{outcome="parked"}' in metrics.body
    assert await decide(served, f"{run_id}/cancel", {}) == (200, {"id": run_id})
    assert await waiting(served, run_id) is None


async def test_who_approves_sees_what_is_sent_without_secrets(served: Daemon) -> None:
    escaped = '"\\u006b3y-of-the-upstream-server"'
    hidden = "\\u202egnp.exe" + " " * 40 + "end"
    code = (
        f'import {{ echo }} from "@codemode/servers/plain"; const text = "{hidden}";'
        f" await Promise.all([echo({{ text, key: {escaped} }}), echo({{ text: 'x'.repeat(40_000) }})]);"
    )
    run_id = await parked(served, code)
    first, second = (await waiting(served, run_id))["questions"]
    assert SECRET not in json.dumps(first) and "[redacted]" in first["input"] and first["whole"]
    assert "\\u202egnp.exe\\x20{40}end" in first["input"]
    assert second["bytes"] > 40_000 and not second["whole"] and 4_000 < len(second["input"]) < 10_000
    assert (await decide(served, f"{run_id}/cancel"))[0] == 200


# ---- in a browser ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Any]:
    async with browser() as running:
        yield running


@contextlib.asynccontextmanager
async def watched(chromium: Any, expected: str) -> AsyncGenerator[Any]:
    """A page in which nothing but the expected has gone wrong at the end: no error, no dialog, and nothing asked of
    anybody else."""
    context = await chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(BOUND_MS)
    made = await context.new_page()
    wrong: list[str] = []
    ours = re.compile(r"https?://127\.0\.0\.1:|file:.*/open\.html$|data:")
    made.on("pageerror", lambda error: wrong.append(f"error {error}"))
    made.on("dialog", lambda dialog: wrong.append(f"dialog {dialog}"))
    made.on("console", lambda said: wrong.append(f"console {said.text}") if said.type == "error" else None)
    made.on("request", lambda asked: None if ours.match(asked.url) else wrong.append(asked.url))
    yield made
    await context.close()
    assert [line for line in wrong if not re.search(expected, line)] == []


@pytest.fixture
async def page(served: Daemon, chromium: Any) -> AsyncIterator[Any]:
    """A page that is signed in."""
    # The browser itself says so where an answer comes too late, or does not fit.
    async with watched(chromium, r"404 \(Not Found\)|status of 422") as made:
        await sign_in(served, made)
        yield made


async def sign_in(served: Daemon, page: Any) -> None:
    code = await served.ask("POST", "/dashboard/code", headers=served.auth, body=b"")
    await page.goto(served.url.replace("/mcp", json.loads(code.body)["path"]))
    await page.wait_for_url("**/dashboard")
    await page.locator("#tiles .tile").first.wait_for()


def rows(page: Any, run_id: str) -> Any:
    return page.locator(f'#parked tr[data-key^="{run_id}"]')


@needs_browser
async def test_allowing_and_refusing_by_click(served: Daemon, page: Any) -> None:
    run_id = await parked(served, TWO.replace('"one"', json.dumps(ATTACK)).replace("two", "refused"))
    mine = rows(page, run_id)
    await mine.first.wait_for()
    # The key is no longer in the address, and the cookie is not for scripts.
    assert page.url.endswith("/dashboard") and await page.evaluate("document.cookie") == ""
    assert await page.title() == "(1) Cellblock"
    assert await page.locator("#waiting").inner_text() == "1 waiting for you"
    assert await mine.count() == 3
    assert json.loads(await mine.nth(1).locator("pre").inner_text()) == {"text": ATTACK}
    await mine.nth(2).get_by_role("button", name="Refuse call 2: plain.echo").click()
    await mine.nth(2).wait_for(state="detached")
    await mine.nth(1).get_by_role("button", name="Allow call 1: plain.echo").click()
    await page.locator("#parked-part").wait_for(state="hidden")
    assert "fulfilled,rejected" in json.dumps((await ended(served, run_id))["logs"])
    assert await page.title() == "Cellblock"
    assert await page.evaluate("window.owned") is None
    assert called(served.ledger, "refused") == 0


@needs_browser
async def test_what_destroys_is_asked_about_again_and_by_keyboard(served: Daemon, page: Any) -> None:
    run_id = await parked(served, REMOVES)
    await rows(page, run_id).first.wait_for()
    assert "can destroy data" in await rows(page, run_id).nth(1).inner_text()
    await page.keyboard.press("w")
    assert await page.evaluate("document.activeElement.textContent") == "Allow"
    # What is typed ahead allows nothing.
    for key in ("Enter", "Escape"):
        await page.keyboard.press("Enter")
        await page.locator("#confirm[open]", has_text="files.remove").wait_for()
        await page.keyboard.press(key)
        await page.locator("#confirm").wait_for(state="hidden")
        assert await waiting(served, run_id) is not None
    await page.keyboard.press("Enter")
    await page.locator("#confirm[open]").wait_for()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Space")
    await page.locator("#parked-part").wait_for(state="hidden")
    assert (await ended(served, run_id))["outcome"] == "ok"
    assert called(served.folder / "files.jsonl", "/notes") == 1


@needs_browser
async def test_on_a_phone_what_is_allowed_and_both_buttons_are_on_the_first_screen(
    served: Daemon, page: Any
) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    long = "a " * 3_000 + "the end"
    run_id = await parked(
        served, TWO.replace('"one"', json.dumps("x" * 250)).replace('"two"', json.dumps(long))
    )
    mine = rows(page, run_id)
    await mine.first.wait_for()
    assert await mine.count() == 3
    # Nothing is cut or hidden, but for what is long, which says how long it is.
    shown = mine.nth(1).locator("pre")
    assert "x" * 250 in await shown.inner_text()
    seen = [shown, *(mine.nth(1).get_by_role("button", name=name) for name in ("Allow", "Refuse"))]
    for box in [await one.bounding_box() for one in seen]:
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["y"] + box["height"] <= 844, box
    assert await shown.evaluate("one => one.scrollHeight <= one.clientHeight + 1")
    folded = mine.nth(2).locator("summary")
    assert "6,018 characters" in await folded.inner_text()
    assert not await mine.nth(2).locator("pre").is_visible()
    await folded.click()
    whole = mine.nth(2).locator("pre")
    assert "the end" in await whole.inner_text()
    assert await whole.evaluate("one => one.scrollHeight <= one.clientHeight + 1")
    await mine.nth(2).get_by_role("button", name="Refuse").click()
    said = page.locator("#parked-said")
    await said.get_by_text(f"Refused: plain.echo. Run {run_id[:8]} still waits for 1 answer.").wait_for()
    await mine.nth(1).get_by_role("button", name="Allow").click()
    await said.get_by_text(f"Run {run_id[:8]} has ended: ok.").wait_for()
    assert await page.locator("#upstreams tr", has_text="plain").locator("td").nth(4).inner_text() == "0"
    assert await page.evaluate("document.documentElement.scrollWidth") == 390


@needs_browser
async def test_the_key_stays_with_the_tab(served: Daemon, page: Any) -> None:
    run_id = await parked(served, TWO)
    await page.reload()
    await rows(page, run_id).first.wait_for()
    cancel = rows(page, run_id).get_by_role("button", name="Cancel")
    assert await cancel.is_enabled()
    # Another tab has the cookie alone: it shows what waits, and no inputs.
    other = await page.context.new_page()
    await other.goto(served.url.replace("/mcp", "/dashboard"))
    await rows(other, run_id).first.wait_for()
    assert await other.locator("#parked-how").is_visible()
    assert await other.locator("#parked pre").count() == 0
    assert await rows(other, run_id).get_by_role("button", name="Cancel").is_disabled()
    await other.close()
    await cancel.click()
    await page.locator("#parked-part").wait_for(state="hidden")
    assert await waiting(served, run_id) is None


@needs_browser
async def test_a_run_that_was_answered_elsewhere_says_so(served: Daemon, page: Any) -> None:
    run_id = await parked(served, TWO)
    await rows(page, run_id).first.wait_for()
    await page.keyboard.press("p")
    assert (await decide(served, f"{run_id}/deny"))[0] == 200
    async with page.expect_response("**/approve") as answered:
        await rows(page, run_id).first.get_by_role("button", name="Allow all").click()
    assert (await answered.value).status == 404
    await page.locator("#parked-said", has_text="no longer waits").wait_for()


@needs_browser
async def test_a_form_of_a_server_is_filled_in(served: Daemon, page: Any) -> None:
    run_id = await parked(
        served,
        """
        import { elicit } from "@codemode/servers/asking";
        console.log(await elicit({}));
    """,
    )
    await rows(page, run_id).first.wait_for()
    # First the call, which nobody has said to be harmless; then what its server asks.
    await rows(page, run_id).nth(1).get_by_role("button", name="Allow").click()
    question = page.locator(
        f'#parked tr[data-key^="{run_id} 1"]', has_text="Its server asks: asking: Who are you?"
    )
    await question.wait_for()
    await question.get_by_role("button", name="Allow").click()
    await page.locator("#parked-said", has_text="does not fit").wait_for()
    await question.get_by_label("name *").fill("Ann")
    await question.get_by_role("button", name="Allow").click()
    await page.locator("#parked-part").wait_for(state="hidden")
    assert "accept Ann" in json.dumps((await ended(served, run_id))["logs"])


SCRIPTED = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'
HOSTILE_SERVER = "<b onmouseover=alert(1)>evil</b>"


@pytest.fixture(scope="module")
async def looked_at(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    folder = tmp_path_factory.mktemp("dashboard")
    tool = {"name": SCRIPTED, "description": SCRIPTED, "inputSchema": {"type": "object"}}
    definitions = folder / "definitions.json"
    definitions.write_text(json.dumps({"pages": [[tool]]}))
    servers = {
        HOSTILE_SERVER: plain_server("--definitions", definitions),
        "mine/x": {"url": "https://mine.example/mcp", "login": "each"},
    }
    section: dict[str, Any] = {
        "dashboard": {"show_scripts": True},
        "journal": "failed",
        "auth": {"keyring": "off"},
    }
    async with daemon(folder, servers=servers, **section) as running:
        yield running


@pytest.fixture
async def fresh_page(chromium: Any) -> AsyncIterator[Any]:
    async with watched(chromium, "^$") as made:
        yield made


async def printed_url(looked_at: Daemon) -> str:
    """What `cellblock dashboard` prints."""
    words = ("dashboard", "--no-open", "--url", looked_at.url, "--state-dir", looked_at.folder / "s")
    return (await cellblock(*words, code=0)).out.strip()


@needs_browser
async def test_signing_in_by_the_private_file_that_a_browser_is_given(
    looked_at: Daemon, fresh_page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER", "true")
    open_privately(tmp_path, "open.html", await printed_url(looked_at))
    await fresh_page.goto((tmp_path / "open.html").as_uri())
    await fresh_page.wait_for_url("**/dashboard")
    await fresh_page.locator("#tiles .tile").first.wait_for()


async def run_at(looked_at: Daemon, code: str) -> Any:
    async with looked_at.client() as client:
        result = await within(client.call_tool(TOOL, {"code": code}))
    return result.structured_content


@needs_browser
async def test_signing_in_and_seeing_a_run(looked_at: Daemon, fresh_page: Any) -> None:
    url = await printed_url(looked_at)
    await fresh_page.goto(url)
    await fresh_page.wait_for_url("**/dashboard")
    await run_at(
        looked_at,
        'import { echo, wait } from "@codemode/servers/plain"; console.warn("half way"); await echo({});'
        " await wait({ ms: 20 }); globalThis.__codemode_result__ = 'in the' + ' result'",
    )
    row = fresh_page.locator("#recent tr", has_text="ok").first
    await row.locator("button").click()
    detail = fresh_page.locator("#detail[open]")
    await detail.locator(".lane", has_text="plain.wait").wait_for()
    assert await detail.locator(".lane").count() == 6
    assert "half way" in await detail.locator("#detail-logs .warn").inner_text()
    assert "of this run alone" in await detail.locator("#detail-facts").inner_text()
    text = await fresh_page.locator("body").inner_text()
    assert "in the result" not in text and "plain" in text
    # The cookie is for the browser alone, and the code has done its work.
    assert await fresh_page.evaluate("document.cookie") == ""
    assert (await fresh_page.request.get(url)).status == 403
    (cookie,) = await fresh_page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/dashboard")


@needs_browser
async def test_who_decides_sees_who_is_logged_in_where(looked_at: Daemon, fresh_page: Any) -> None:
    for person, scope in (("", "read"), ("oauth:ann", f"read {SCRIPTED}"), ("token:ci", "")):
        record = LoginRecord(
            server_url="https://notes.example/mcp",
            client=OAuthClientInformationFull(client_id="c", client_secret="s3cr3t-c"),
            since=time.time() - 7200,
        )
        tokens = OAuthToken(access_token="s3cr3t-a", refresh_token="s3cr3t-r", expires_in=60, scope=scope)
        settings, store = AuthSettings(keyring="off"), LocalStore(looked_at.folder / "s")
        login = LoginStore(store, "notes", record.server_url, settings, person=person)
        await login.save(record.with_tokens(tokens) if person != "token:ci" else record)
    await sign_in(looked_at, fresh_page)
    rows = fresh_page.locator("#logins tr")
    await rows.nth(3).wait_for()
    shown = [" | ".join(await row.locator("td").all_inner_texts()) for row in await rows.all()]
    shown = [re.sub(r"\b\d+ s ago", "now", row) for row in shown]  # used when the test began
    assert shown == [
        "notes | all | logged in | 2 h ago | now | read",
        f"notes | oauth:ann | logged in | 2 h ago | now | read {SCRIPTED}",
        "notes | token:ci | ended | 2 h ago | – | –",
        "mine/x | user of this machine | no login | – | – | –",
    ]
    assert [await row.get_attribute("href") for row in await fresh_page.locator("#logins a").all()] == [
        "/login/mine%2Fx"
    ]
    for width in (390, 1440):
        await fresh_page.set_viewport_size({"width": width, "height": 900})
        assert await fresh_page.evaluate("document.documentElement.scrollWidth") == width
    # The cookie alone does not decide.
    answer = await fresh_page.request.get(f"{fresh_page.url.partition('/dashboard')[0]}/dashboard/logins")
    assert await answer.json() == {"logins": []}
    listed = await looked_at.ask("GET", "/dashboard/logins", headers=looked_at.auth)
    assert len(json.loads(listed.body)["logins"]) == 4 and b"s3cr3t" not in listed.body


@needs_browser
async def test_it_says_that_processes_are_reused_and_what_that_means(tmp_path: Path, fresh_page: Any) -> None:
    async with daemon(tmp_path, pool={"reuse": "principal"}) as reusing:
        async with reusing.client() as client:
            reused = 0
            for _ in range(100):
                result: Any = await within(client.call_tool(TOOL, {"code": "1"}))
                if reused := result.structured_content["usage"]["reused"]:
                    break
        await sign_in(reusing, fresh_page)
        layers = fresh_page.locator("#layers li")
        await layers.filter(has_text="between them is a V8 context, which is hygiene and no wall").wait_for()
        await layers.filter(has_text="deno: no permission").wait_for()
        await fresh_page.locator("#recent tr").first.locator("button").click()
        await fresh_page.locator("#detail[open]").wait_for()
        said = f"had served {reused} run{'' if reused == 1 else 's'} before"
        assert said in await fresh_page.locator("#detail-facts").inner_text()


@needs_browser
async def test_a_row_opens_by_click_and_its_button_by_space(looked_at: Daemon, fresh_page: Any) -> None:
    await run_at(looked_at, "/* of this test */ globalThis.__codemode_result__ = 1")
    await sign_in(looked_at, fresh_page)
    row = fresh_page.locator("#recent tr").first
    # Not the button: the last cell.
    await row.locator("td").last.click()
    await fresh_page.locator("#detail[open]").wait_for()
    assert "of this test" in await fresh_page.locator("#detail-script").inner_text()
    await fresh_page.keyboard.press("Escape")
    await fresh_page.locator("#detail").wait_for(state="hidden")
    button = row.locator("button")
    assert await button.get_attribute("aria-haspopup") == "dialog"
    await button.focus()
    await fresh_page.keyboard.press("Space")
    await fresh_page.locator("#detail[open]").wait_for()
    await fresh_page.keyboard.press("Escape")
    await fresh_page.locator("#detail").wait_for(state="hidden")
    # Where text is marked, a click is no wish to open.
    await fresh_page.evaluate(
        "getSelection().selectAllChildren(document.querySelector('#recent tr td:last-child'))"
    )
    await fresh_page.evaluate("document.querySelector('#recent tr td:last-child').click()")
    await fresh_page.evaluate("getSelection().removeAllRanges()")
    assert await fresh_page.locator("#detail[open]").count() == 0


@needs_browser
async def test_a_kept_run_is_listed_and_opened_with_its_command(looked_at: Daemon, fresh_page: Any) -> None:
    run_id = (await run_at(looked_at, "console.log('kept'); throw new Error('on purpose')"))["usage"]["runId"]
    await sign_in(looked_at, fresh_page)
    row = fresh_page.locator("#kept tr", has_text=run_id[:8])
    await row.wait_for()
    assert "UNCAUGHT_EXCEPTION" in await row.inner_text()
    await row.click()
    await fresh_page.locator("#detail[open]").wait_for()
    assert f"cellblock replay {run_id}" in await fresh_page.locator("#detail-facts").inner_text()
    assert "kept" in await fresh_page.locator("#detail-logs").inner_text()
    await fresh_page.keyboard.press("Escape")


@needs_browser
async def test_live_runs_come_and_go_by_themselves(looked_at: Daemon, fresh_page: Any) -> None:
    await sign_in(looked_at, fresh_page)
    async with looked_at.client() as client:
        code = 'import { never } from "@codemode/servers/plain"; console.log("waiting"); await never({});'
        task = asyncio.create_task(client.call_tool(TOOL, {"code": code, "limits": {"timeoutMs": 20_000}}))
        live = fresh_page.locator("#live tr", has_text="waiting")
        await live.wait_for()
        assert "running" in await live.inner_text()
        assert await fresh_page.locator("#live-empty").is_hidden()
        await live.locator("button").click()
        await fresh_page.locator("#detail .lane", has_text="plain.never").locator("i.now").wait_for()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await fresh_page.locator("#live-empty").wait_for()
    await fresh_page.locator("#detail-facts", has_text="CANCELLED").wait_for()


@needs_browser
async def test_hostile_texts_stay_texts(looked_at: Daemon, fresh_page: Any) -> None:
    code = (
        f"import * as evil from '@codemode/servers/{{PATH}}';"
        " const call = Object.entries(evil).find(([name]) => name !== '__meta__')[1];"
        f" console.error({json.dumps(SCRIPTED)}); await call({{}}); throw new Error({json.dumps(SCRIPTED)})"
    )
    async with looked_at.client() as client:
        lists = (
            'import { listServers } from "@codemode/discovery";'
            " globalThis.__codemode_result__ = await listServers()"
        )
        listed: Any = await within(client.call_tool(TOOL, {"code": lists}))
    (path,) = {entry["serverId"] for entry in listed.structured_content["result"]} - {"plain"}
    response = await run_at(looked_at, code.replace("{PATH}", path))
    assert [entry["ok"] for entry in response["toolTrace"]] == [True], response
    await sign_in(looked_at, fresh_page)
    await fresh_page.locator("#upstreams tr", has_text=HOSTILE_SERVER).wait_for()
    await fresh_page.locator("#recent tr", has_text="UNCAUGHT_EXCEPTION").first.locator("button").click()
    detail = fresh_page.locator("#detail[open]")
    await detail.locator(".lane", has_text=SCRIPTED).wait_for()
    assert SCRIPTED in await detail.locator("#detail-logs").inner_text()
    assert await detail.locator("#detail-script").inner_text() == code.replace("{PATH}", path)
    assert SCRIPTED in await detail.locator("#detail-diagnostics").inner_text()
    assert await fresh_page.evaluate("window.owned") is None
    assert await fresh_page.locator("img, main script, dialog script").count() == 0


@needs_browser
async def test_all_of_it_by_keyboard(looked_at: Daemon, fresh_page: Any) -> None:
    await run_at(looked_at, "1")
    await run_at(looked_at, "2")
    await sign_in(looked_at, fresh_page)
    await fresh_page.locator("#recent button.run").nth(1).wait_for()
    await fresh_page.keyboard.press("r")
    first = await fresh_page.evaluate("document.activeElement.closest('tr').dataset.key")
    await fresh_page.keyboard.press("ArrowDown")
    second = await fresh_page.evaluate("document.activeElement.closest('tr').dataset.key")
    assert first != second
    # An update must not take the focus away.
    async with fresh_page.expect_response("**/dashboard/state"):
        pass
    assert await fresh_page.evaluate("document.activeElement.closest('tr').dataset.key") == second
    await fresh_page.keyboard.press("Enter")
    await fresh_page.locator("#detail[open]", has_text=second).wait_for()
    await fresh_page.keyboard.press("Escape")
    await fresh_page.locator("#detail").wait_for(state="hidden")
    assert await fresh_page.evaluate("document.activeElement.closest('tr').dataset.key") == second
    await fresh_page.keyboard.press("?")
    await fresh_page.locator("#keys[open]").wait_for()
    await fresh_page.keyboard.press("Escape")
    await fresh_page.keyboard.press("p")
    assert await fresh_page.locator("#pause").get_attribute("aria-pressed") == "true"
    for element in await fresh_page.locator("button:visible").all():
        assert await element.inner_text()


@needs_browser
async def test_narrow_windows_scroll_down_only(looked_at: Daemon, fresh_page: Any) -> None:
    await run_at(looked_at, "console.log('x'.repeat(2000)); globalThis.__codemode_result__ = 1;")
    await sign_in(looked_at, fresh_page)
    await fresh_page.locator("#recent tr").first.wait_for()
    for width in (390, 700, 1280):
        await fresh_page.set_viewport_size({"width": width, "height": 800})
        wide = await fresh_page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide == 0, f"{wide} pixels stick out of {width}"
    await fresh_page.set_viewport_size({"width": 390, "height": 800})
    await fresh_page.locator("#recent button.run").first.click()
    await fresh_page.locator("#detail[open]").wait_for()
    out = "(() => { const one = document.getElementById('detail'); return one.scrollWidth - one.clientWidth; })()"
    assert await fresh_page.evaluate(out) == 0


@needs_browser
async def test_light_and_dark(looked_at: Daemon, fresh_page: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    await fresh_page.emulate_media(color_scheme="light")
    await sign_in(looked_at, fresh_page)
    light = await fresh_page.evaluate(colour)
    await fresh_page.emulate_media(color_scheme="dark")
    dark = await fresh_page.evaluate(colour)
    assert light != dark
    await fresh_page.keyboard.press("t")
    assert await fresh_page.evaluate(colour) == light
    await fresh_page.reload()
    assert await fresh_page.locator("#theme").inner_text() == "Theme: light"
    assert await fresh_page.evaluate(colour) == light
    await fresh_page.keyboard.press("t")
    assert await fresh_page.evaluate(colour) == dark
