"""The dashboard of a real daemon in a real browser: signing in, looking, keys, colours, and hostile texts."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
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
from support.entries import plain_server
from support.http_daemon import TOOL, Daemon, daemon
from support.waits import within

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(browser_path() is None, reason=WHERE_FROM)]

BOUND_MS = 30_000

ATTACK = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'
HOSTILE_SERVER = "<b onmouseover=alert(1)>evil</b>"


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    folder = tmp_path_factory.mktemp("dashboard")
    tool = {"name": ATTACK, "description": ATTACK, "inputSchema": {"type": "object"}}
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


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Any]:
    async with browser() as running:
        yield running


@pytest.fixture
async def page(chromium: Any) -> AsyncIterator[Any]:
    """A page that has done nothing wrong when the test is over: no error, nothing asked of anybody else."""
    context = await chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(BOUND_MS)
    made = await context.new_page()
    wrong: list[str] = []
    ours = re.compile(r"https?://127\.0\.0\.1:|file:.*/open\.html$")

    def said(one: Any) -> None:
        if one.type == "error":
            wrong.append(f"console {one.text}")

    def asked(one: Any) -> None:
        if not ours.match(one.url):
            wrong.append(one.url)

    def failed(one: Any) -> None:
        wrong.append(f"error or dialog {one}")

    for name, heard in {"pageerror": failed, "console": said, "request": asked, "dialog": failed}.items():
        made.on(name, heard)
    yield made
    await context.close()
    assert [line for line in wrong if not line.startswith("data:")] == []


async def printed_url(served: Daemon) -> str:
    """What `cellblock dashboard` prints."""
    words = ("dashboard", "--no-open", "--url", served.url, "--state-dir", served.folder / "s")
    done = await cellblock(*words)
    assert done.code == 0, done.err
    return done.out.strip()


async def test_signing_in_by_the_private_file_that_a_browser_is_given(
    served: Daemon, page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER", "true")
    open_privately(tmp_path, "open.html", await printed_url(served))
    await page.goto((tmp_path / "open.html").as_uri())
    await page.wait_for_url("**/dashboard")
    await page.locator("#tiles .tile").first.wait_for()


async def signed_in(served: Daemon, page: Any) -> None:
    await page.goto(await printed_url(served))
    await page.wait_for_url("**/dashboard")
    await page.locator("#tiles .tile").first.wait_for()


async def run(served: Daemon, code: str) -> Any:
    async with served.client() as client:
        result = await within(client.call_tool(TOOL, {"code": code}))
    return result.structured_content


async def test_signing_in_and_seeing_a_run(served: Daemon, page: Any) -> None:
    url = await printed_url(served)
    await page.goto(url)
    await page.wait_for_url("**/dashboard")
    await run(
        served,
        'import { echo, wait } from "@codemode/servers/plain"; console.warn("half way"); await echo({});'
        " await wait({ ms: 20 }); globalThis.__codemode_result__ = 'in the' + ' result'",
    )
    row = page.locator("#recent tr", has_text="ok").first
    await row.locator("button").click()
    detail = page.locator("#detail[open]")
    await detail.locator(".lane", has_text="plain.wait").wait_for()
    assert await detail.locator(".lane").count() == 6
    assert "half way" in await detail.locator("#detail-logs .warn").inner_text()
    assert "of this run alone" in await detail.locator("#detail-facts").inner_text()
    text = await page.locator("body").inner_text()
    assert "in the result" not in text and "plain" in text
    # The cookie is for the browser alone, and the code has done its work.
    assert await page.evaluate("document.cookie") == ""
    assert (await page.request.get(url)).status == 403
    (cookie,) = await page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/dashboard")


async def test_who_decides_sees_who_is_logged_in_where(served: Daemon, page: Any) -> None:
    for person, scope in (("", "read"), ("oauth:ann", f"read {ATTACK}"), ("token:ci", "")):
        record = LoginRecord(
            server_url="https://notes.example/mcp",
            client=OAuthClientInformationFull(client_id="c", client_secret="s3cr3t-c"),
            since=time.time() - 7200,
        )
        tokens = OAuthToken(access_token="s3cr3t-a", refresh_token="s3cr3t-r", expires_in=60, scope=scope)
        settings, store = AuthSettings(keyring="off"), LocalStore(served.folder / "s")
        login = LoginStore(store, "notes", record.server_url, settings, person=person)
        await login.save(record.with_tokens(tokens) if person != "token:ci" else record)
    await signed_in(served, page)
    rows = page.locator("#logins tr")
    await rows.nth(3).wait_for()
    shown = [" | ".join(await row.locator("td").all_inner_texts()) for row in await rows.all()]
    shown = [re.sub(r"\b\d+ s ago", "now", row) for row in shown]  # used when the test began
    assert shown == [
        "notes | all | logged in | 2 h ago | now | read",
        f"notes | oauth:ann | logged in | 2 h ago | now | read {ATTACK}",
        "notes | token:ci | ended | 2 h ago | – | –",
        "mine/x | user of this machine | no login | – | – | –",
    ]
    assert [await row.get_attribute("href") for row in await page.locator("#logins a").all()] == [
        "/login/mine%2Fx"
    ]
    for width in (390, 1440):
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate("document.documentElement.scrollWidth") == width
    # The cookie alone does not decide.
    answer = await page.request.get(f"{page.url.partition('/dashboard')[0]}/dashboard/logins")
    assert await answer.json() == {"logins": []}
    listed = await served.ask("GET", "/dashboard/logins", headers=served.auth)
    assert len(json.loads(listed.body)["logins"]) == 4 and b"s3cr3t" not in listed.body


async def test_it_says_that_processes_are_reused_and_what_that_means(tmp_path: Path, page: Any) -> None:
    async with daemon(tmp_path, pool={"reuse": "principal"}) as reusing:
        async with reusing.client() as client:
            reused = 0
            for _ in range(100):
                result: Any = await within(client.call_tool(TOOL, {"code": "1"}))
                if reused := result.structured_content["usage"]["reused"]:
                    break
        await signed_in(reusing, page)
        layers = page.locator("#layers li")
        await layers.filter(has_text="between them is a V8 context, which is hygiene and no wall").wait_for()
        await layers.filter(has_text="deno: no permission").wait_for()
        await page.locator("#recent tr").first.locator("button").click()
        await page.locator("#detail[open]").wait_for()
        said = f"had served {reused} run{'' if reused == 1 else 's'} before"
        assert said in await page.locator("#detail-facts").inner_text()


async def test_a_row_opens_by_click_and_its_button_by_space(served: Daemon, page: Any) -> None:
    await run(served, "/* of this test */ globalThis.__codemode_result__ = 1")
    await signed_in(served, page)
    row = page.locator("#recent tr").first
    # Not the button: the last cell.
    await row.locator("td").last.click()
    await page.locator("#detail[open]").wait_for()
    assert "of this test" in await page.locator("#detail-script").inner_text()
    await page.keyboard.press("Escape")
    await page.locator("#detail").wait_for(state="hidden")
    button = row.locator("button")
    assert await button.get_attribute("aria-haspopup") == "dialog"
    await button.focus()
    await page.keyboard.press("Space")
    await page.locator("#detail[open]").wait_for()
    await page.keyboard.press("Escape")
    await page.locator("#detail").wait_for(state="hidden")
    # Where text is marked, a click is no wish to open.
    await page.evaluate(
        "getSelection().selectAllChildren(document.querySelector('#recent tr td:last-child'))"
    )
    await page.evaluate("document.querySelector('#recent tr td:last-child').click()")
    await page.evaluate("getSelection().removeAllRanges()")
    assert await page.locator("#detail[open]").count() == 0


async def test_a_kept_run_is_listed_and_opened_with_its_command(served: Daemon, page: Any) -> None:
    run_id = (await run(served, "console.log('kept'); throw new Error('on purpose')"))["usage"]["runId"]
    await signed_in(served, page)
    row = page.locator("#kept tr", has_text=run_id[:8])
    await row.wait_for()
    assert "UNCAUGHT_EXCEPTION" in await row.inner_text()
    await row.click()
    await page.locator("#detail[open]").wait_for()
    assert f"cellblock replay {run_id}" in await page.locator("#detail-facts").inner_text()
    assert "kept" in await page.locator("#detail-logs").inner_text()
    await page.keyboard.press("Escape")


async def test_live_runs_come_and_go_by_themselves(served: Daemon, page: Any) -> None:
    await signed_in(served, page)
    async with served.client() as client:
        code = 'import { never } from "@codemode/servers/plain"; console.log("waiting"); await never({});'
        task = asyncio.create_task(client.call_tool(TOOL, {"code": code, "limits": {"timeoutMs": 20_000}}))
        live = page.locator("#live tr", has_text="waiting")
        await live.wait_for()
        assert "running" in await live.inner_text()
        assert await page.locator("#live-empty").is_hidden()
        await live.locator("button").click()
        await page.locator("#detail .lane", has_text="plain.never").locator("i.now").wait_for()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await page.locator("#live-empty").wait_for()
    await page.locator("#detail-facts", has_text="CANCELLED").wait_for()


async def test_hostile_texts_stay_texts(served: Daemon, page: Any) -> None:
    code = (
        f"import * as evil from '@codemode/servers/{{PATH}}';"
        " const call = Object.entries(evil).find(([name]) => name !== '__meta__')[1];"
        f" console.error({json.dumps(ATTACK)}); await call({{}}); throw new Error({json.dumps(ATTACK)})"
    )
    async with served.client() as client:
        lists = (
            'import { listServers } from "@codemode/discovery";'
            " globalThis.__codemode_result__ = await listServers()"
        )
        listed: Any = await within(client.call_tool(TOOL, {"code": lists}))
    (path,) = {entry["serverId"] for entry in listed.structured_content["result"]} - {"plain"}
    response = await run(served, code.replace("{PATH}", path))
    assert [entry["ok"] for entry in response["toolTrace"]] == [True], response
    await signed_in(served, page)
    await page.locator("#upstreams tr", has_text=HOSTILE_SERVER).wait_for()
    await page.locator("#recent tr", has_text="UNCAUGHT_EXCEPTION").first.locator("button").click()
    detail = page.locator("#detail[open]")
    await detail.locator(".lane", has_text=ATTACK).wait_for()
    assert ATTACK in await detail.locator("#detail-logs").inner_text()
    assert await detail.locator("#detail-script").inner_text() == code.replace("{PATH}", path)
    assert ATTACK in await detail.locator("#detail-diagnostics").inner_text()
    assert await page.evaluate("window.owned") is None
    assert await page.locator("img, main script, dialog script").count() == 0


async def test_all_of_it_by_keyboard(served: Daemon, page: Any) -> None:
    await run(served, "1")
    await run(served, "2")
    await signed_in(served, page)
    await page.locator("#recent button.run").nth(1).wait_for()
    await page.keyboard.press("r")
    first = await page.evaluate("document.activeElement.closest('tr').dataset.key")
    await page.keyboard.press("ArrowDown")
    second = await page.evaluate("document.activeElement.closest('tr').dataset.key")
    assert first != second
    # An update must not take the focus away.
    async with page.expect_response("**/dashboard/state"):
        pass
    assert await page.evaluate("document.activeElement.closest('tr').dataset.key") == second
    await page.keyboard.press("Enter")
    await page.locator("#detail[open]", has_text=second).wait_for()
    await page.keyboard.press("Escape")
    await page.locator("#detail").wait_for(state="hidden")
    assert await page.evaluate("document.activeElement.closest('tr').dataset.key") == second
    await page.keyboard.press("?")
    await page.locator("#keys[open]").wait_for()
    await page.keyboard.press("Escape")
    await page.keyboard.press("p")
    assert await page.locator("#pause").get_attribute("aria-pressed") == "true"
    for element in await page.locator("button:visible").all():
        assert await element.inner_text()


async def test_narrow_windows_scroll_down_only(served: Daemon, page: Any) -> None:
    await run(served, "console.log('x'.repeat(2000)); globalThis.__codemode_result__ = 1;")
    await signed_in(served, page)
    await page.locator("#recent tr").first.wait_for()
    for width in (390, 700, 1280):
        await page.set_viewport_size({"width": width, "height": 800})
        wide = await page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide == 0, f"{wide} pixels stick out of {width}"
    await page.set_viewport_size({"width": 390, "height": 800})
    await page.locator("#recent button.run").first.click()
    await page.locator("#detail[open]").wait_for()
    out = "(() => { const one = document.getElementById('detail'); return one.scrollWidth - one.clientWidth; })()"
    assert await page.evaluate(out) == 0


async def test_light_and_dark(served: Daemon, page: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    await page.emulate_media(color_scheme="light")
    await signed_in(served, page)
    light = await page.evaluate(colour)
    await page.emulate_media(color_scheme="dark")
    dark = await page.evaluate(colour)
    assert light != dark
    await page.keyboard.press("t")
    assert await page.evaluate(colour) == light
    await page.reload()
    assert await page.locator("#theme").inner_text() == "Theme: light"
    assert await page.evaluate(colour) == light
    await page.keyboard.press("t")
    assert await page.evaluate(colour) == dark


async def test_without_a_cookie_there_is_only_the_way_in(
    served: Daemon, chromium: Any, tmp_path: Path
) -> None:
    context = await chromium.new_context()
    page = await context.new_page()
    assert (await page.goto(served.url.replace("/mcp", "/dashboard"))).status == 401
    assert "cellblock dashboard" in await page.locator("body").inner_text()
    for path in ("/dashboard/state", "/dashboard/app.js", "/metrics"):
        assert (await page.request.get(served.url.replace("/mcp", path))).status == 401
    await context.close()
