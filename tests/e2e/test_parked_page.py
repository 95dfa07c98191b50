"""Runs that wait for a person, answered on the dashboard of a real daemon: by raw HTTP, and in a real browser."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.browser import WHERE_FROM, browser, browser_path
from support.entries import entry, forked_server, ledger, plain_server
from support.http_daemon import Daemon, daemon
from support.parked_runs import WAITING, ended, login, parked, waiting
from support.waits import until

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
    lines = [json.loads(line) for line in (served.folder / "s" / "audit.jsonl").read_text().splitlines()]
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


async def test_a_run_that_waits_is_no_failure(served: Daemon) -> None:
    run_id = await parked(served, TWO.replace("one", "later"))
    state = json.loads((await served.ask("GET", "/dashboard/state", headers=served.auth)).body)
    assert state["runs"]["byOutcome"]["parked"] >= 1
    (mine,) = [run for run in state["recent"] if run["id"] == run_id]
    assert mine["outcome"] == "parked" and sum(failed for _, failed in state["perSecond"]) == 0
    metrics = await served.ask("GET", "/metrics", headers=served.auth)
    assert b'cellblock_runs_total{outcome="parked"}' in metrics.body
    assert (await decide(served, f"{run_id}/cancel"))[0] == 200


async def test_a_cancelled_run_has_ended(served: Daemon) -> None:
    run_id = await parked(served, TWO.replace("one", "never"))
    assert await decide(served, f"{run_id}/cancel", {}) == (200, {"id": run_id})
    assert await waiting(served, run_id) is None
    assert (await decide(served, f"{run_id}/cancel"))[0] == 404
    assert called(served.ledger, "never") == 0


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


@pytest.fixture
async def page(served: Daemon, chromium: Any) -> AsyncIterator[Any]:
    """A page that is signed in; nothing has gone wrong in it when the test is over."""
    context = await chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(BOUND_MS)
    made = await context.new_page()
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(f"error {error}"))
    made.on("console", lambda said: wrong.append(f"console {said.text}") if said.type == "error" else None)
    await sign_in(served, made)
    yield made
    await context.close()
    # The browser itself says so where an answer comes too late, or does not fit.
    assert [line for line in wrong if "404 (Not Found)" not in line and "status of 422" not in line] == []


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
