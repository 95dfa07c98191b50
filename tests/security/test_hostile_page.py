"""A hostile page in the browser of somebody who has the dashboard open: it frames, reads, forges and stores nothing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.browser import WHERE_FROM, browser, browser_path
from support.http_daemon import daemon

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(browser_path() is None, reason=WHERE_FROM)]

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


async def test_of_another_origin_nothing_is_read_framed_or_forged(tmp_path: Path) -> None:
    async def evil(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        page = b"<!doctype html><title>evil</title>"
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(page) + page
        )
        await writer.drain()
        writer.close()

    served_by = await asyncio.start_server(evil, "127.0.0.1", 0)
    port = served_by.sockets[0].getsockname()[1]
    async with served_by, daemon(tmp_path, auth={"keyring": "off"}) as served, browser() as chromium:
        url = served.url.removesuffix("/mcp")
        context: Any = await chromium.new_context()
        context.set_default_timeout(60_000)
        code = await served.ask("POST", "/dashboard/code", headers=served.auth, body=b"")
        page = await context.new_page()
        await page.goto(url + json.loads(code.body)["path"])
        await page.locator("#upstreams tr", has_text="plain").wait_for()
        assert await page.evaluate("[document.cookie, { ...localStorage }]") == ["", {}]
        statuses: dict[str, int] = {}

        def answered(answer: Any) -> None:
            statuses[answer.url.removeprefix(url)] = answer.status

        context.on("response", answered)
        # The same site by its address, so that the cookie is sent where a browser would send it at all.
        for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
            hostile = await context.new_page()
            await hostile.goto(f"http://{host}/")
            tried = await hostile.evaluate(ATTACKS, url)
            assert tried["read"].startswith("TypeError") and tried["script"] == "refused", tried
            assert "plain" not in tried["frame"], tried
        forged = {path: status for path, status in statuses.items() if path.startswith("/")}
        assert len(forged) >= 5 and set(forged.values()) <= {401, 403}, forged
