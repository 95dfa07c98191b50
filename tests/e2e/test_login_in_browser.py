"""A login to a server in a real browser, as a person does it on a narrow screen."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.browser import WHERE_FROM, browser, browser_path
from support.identity_provider import provider
from support.login_site import Site, site, team

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(browser_path() is None, reason=WHERE_FROM)]

BOUND_MS = 30_000


@pytest.fixture
async def page() -> AsyncIterator["Page"]:
    async with browser() as running:
        context = await running.new_context(viewport={"width": 390, "height": 800})
        context.set_default_timeout(BOUND_MS)
        yield await context.new_page()
        await context.close()


async def agreed(page: "Page", made: Site, person: str) -> None:
    """Says yes to the authorization server, on which the page's form has led to."""
    await page.wait_for_url(f"{made.place.issuer}consent?*", timeout=BOUND_MS)
    await page.click("#allow")
    await page.wait_for_url(f"{made.callback}?*", timeout=BOUND_MS)
    assert "is logged in to notes" in await page.inner_text("body")
    record = await made.login_of(person)
    assert record is not None and record.tokens is not None


async def test_with_a_token(tmp_path: Path, page: "Page") -> None:
    async with site(tmp_path) as made:
        eve, said = await made.token("eve"), list[str]()
        page.on("console", lambda message: said.append(message.text))
        # As from a chat: of another site.
        await page.goto(f"data:text/html,<a href='{made.page}'>log in</a>")
        await page.click("a")
        await page.wait_for_url(made.page, timeout=BOUND_MS)
        assert await page.evaluate("document.documentElement.scrollWidth <= 390")
        await page.fill("input[name=token]", eve)
        await page.click("button")
        await agreed(page, made, "token:eve")
        assert not [text for text in said if "Content Security Policy" in text]


async def test_with_an_identity_provider(tmp_path: Path, page: "Page") -> None:
    with provider() as idp:
        async with team(tmp_path, idp) as made:
            await page.goto(made.page)
            await page.click("button")
            await agreed(page, made, "oauth:ada")
