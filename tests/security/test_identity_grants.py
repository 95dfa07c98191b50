"""Tokens for who somebody is, with an identity provider and an authorization server that are not ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cellblock.base.settings.server import AuthSettings
from cellblock.base.store import LocalStore
from cellblock.tools.upstream.auth.asserted import place_of
from support.commands import cellblock
from support.entries import SERVERS, forked_server, ledger
from support.http_daemon import TOOL, Daemon, daemon
from support.http_server import free_port
from support.oauth_world import Browser
from support.processes import owned_process
from support.public_servers import NODE, require
from support.waits import until, until_found, within

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]


WHOAMI = """
    import { whoami } from "@codemode/servers/wiki";
    export default await whoami({}).catch((error) => `${error.name}: ${error.message} ${error.hint}`);
"""


@dataclass
class Company:
    """A daemon in front of a server of the company's."""

    folder: Path
    people: str
    daemon: Daemon
    others: list[Daemon] = field(default_factory=list[Daemon])
    """More brokers, with the same state."""

    clients: dict[str, str] = field(default_factory=dict[str, str])
    """Has the tokens that people's MCP clients show."""

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in ledger(self.folder / "ledger.jsonl") if event["event"] == name]

    def place(self, name: str) -> Any:
        return place_of(
            LocalStore(self.folder / "s"), self.people, AuthSettings(keyring="off"), f"oauth:{name}"
        )

    async def log_in(self, name: str, *, ready: bool = True) -> httpx2.Response:
        browser = Browser()
        browser.http.headers["X-Person"] = name
        async with browser.http:
            page = await browser.post(f"{self.daemon.url.removesuffix('/mcp')}/login/wiki")
            page = await browser.followed(page)
        if ready:
            assert page.status_code == 200 and f"oauth:{name} is logged in to wiki" in page.text, page.text
        return page

    async def said(self, name: str, at: Daemon | None = None) -> Any:
        """What a script of a person gives, at one of the brokers."""
        if name not in self.clients:
            async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
                url = f"{self.people}/client?{name} {self.daemon.url}"
                self.clients[name] = (await http.post(url)).text
        async with replace(at or self.daemon, token=self.clients[name]).client() as client:
            response: Any = (await within(client.call_tool(TOOL, {"code": WHOAMI}))).structured_content
        return response["result"] or json.dumps(response["diagnostics"])

    async def fault(self, kind: str) -> None:
        async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
            (await http.post(f"{self.people}/fault", content=kind)).raise_for_status()

    async def gives(self, name: str, wanted: str) -> None:
        async def look() -> bool:
            return wanted in str(await self.said(name))

        await until_found(look, f"{name} gets {wanted}", pause=0.3)


@contextlib.asynccontextmanager
async def company(
    folder: Path,
    grant: str = "identity_assertion",
    *,
    seconds: int = 600,
    offered: str | None = None,
    brokers: int = 1,
) -> AsyncGenerator[Company]:
    modules, record, port = NODE.parent.parent, folder / "ledger.jsonl", free_port()
    require(NODE, modules / "node_modules" / "oidc-provider")
    async with contextlib.AsyncExitStack() as stack:

        async def begun(*words: object, **more: str) -> tuple[asyncio.subprocess.Process, list[int]]:
            started = owned_process(*words, stdin=PIPE, stdout=PIPE, env={**os.environ, **more})
            process = await stack.enter_async_context(started)
            return process, list(map(int, (await within(process.stdout.readline())).split()))

        server, (mcp,) = await begun(*forked_server("oauth_server.py", "--introspecting", "--ledger", record))
        url, own = f"http://127.0.0.1:{mcp}/mcp", f"http://127.0.0.1:{port}"
        words = modules, url, seconds, record, f"{own}/login/callback"
        more = {} if offered is None else {"OFFERED": offered}
        _, (people, wiki) = await begun(NODE, SERVERS / "enterprise.mjs", *words, **more)
        server.stdin.write(f"http://127.0.0.1:{wiki}\n".encode())
        await server.stdin.drain()
        issuer = f"http://127.0.0.1:{people}"
        oauth = {
            "issuer": issuer,
            "audience": f"{own}/mcp",
            "jwks_url": f"{issuer}/jwks",
            "client_id": "the-broker",
            "client_secret": "s3cr3t-of-the-broker",
        }
        client = {
            "grant": grant,
            "issuer": f"http://127.0.0.1:{wiki}",
            "client_id": "broker-at-wiki",
            "client_secret": "s3cr3t-at-wiki",
        }
        section: dict[str, Any] = {
            "servers": {"wiki": {"url": url, "login": "each"}},
            "http": {"oauth": oauth},
            "token": "",
            "auth": {"keyring": "off", "servers": {"wiki": client}},
            "typecheck": "off",
            "pins": "off",
        }
        served = [daemon(folder, "--http", f"127.0.0.1:{port}", **section)]
        if brokers == 2:
            (folder / "other").mkdir()
            served.append(daemon(folder / "other", "--state-dir", str(folder / "s"), **section))
        first, *others = [await stack.enter_async_context(one) for one in served]
        yield Company(folder, issuer, first, others)


async def test_everybody_calls_as_who_they_are_at_the_identity_provider(tmp_path: Path) -> None:
    async with company(tmp_path) as made:
        assert "it needs a login of your own" in await made.said("alice")
        for name in ("alice", "bob"):
            await made.log_in(name)
        assert "it needs a login of your own" in await made.said("eve")
        names = ["alice", "bob"] * 5
        assert await asyncio.gather(*map(made.said, names)) == names
        assert {event["person"] for event in made.events("call")} == {"alice", "bob"}
        # To the server's authorization server came assertions alone, to the provider ID tokens that it gave to us.
        granted = made.events("grant")
        assert {event["grant"] for event in granted} == {"urn:ietf:params:oauth:grant-type:jwt-bearer"}
        # What people's clients show to the broker is shown to nobody else: each request is in the ledger, those of the
        # server, which asks whose each token is, among them.
        shown = [event for event in made.events("request") if event["path"] == "/token/introspection"]
        assert shown and all(event["form"]["token"] for event in shown)
        text = (tmp_path / "ledger.jsonl").read_text()
        assert len(made.clients) == 3 and not any(token in text for token in made.clients.values())
        # What is kept of them tells nobody a secret.
        listed = await cellblock(
            "auth", "list", "--config", tmp_path / "cellblock.json", "--state-dir", tmp_path / "s"
        )
        assert f"oauth:alice to {made.people}: logged in" in listed.out, listed
        record = await made.place("alice").load()
        assert record.tokens.access_token not in listed.out + "".join(made.daemon.said)


def revoked(made: Company, at: str) -> list[int]:
    asked = [event for event in made.events("request") if event["path"] == "/token/revocation"]
    return [event["status"] for event in asked if event["at"] == at]


REFUSED = {
    "forged": "ERR_JWS_SIGNATURE_VERIFICATION_FAILED",
    "expired": "ERR_JWT_EXPIRED",
    "other audience": "ERR_JWT_CLAIM_VALIDATION_FAILED aud",
    "other resource": "for another resource",
    "other client": "of another client",
    "no assertion": "ERR_JWT_CLAIM_VALIDATION_FAILED typ",
    "other type": "by the identity provider",
    "denied": "the company does not want it",
}


async def test_an_assertion_that_is_refused_reaches_nothing(tmp_path: Path) -> None:
    async with company(tmp_path) as made:
        for kind, why in REFUSED.items():
            await made.fault(kind)
            page = await made.log_in("alice", ready=False)
            assert page.status_code == 400 and "oauth:alice has no access to wiki" in page.text, page.text
            refused = [event["why"] for event in made.events("refused")]
            assert why in page.text or why in refused[-1], (kind, page.text, refused)
        assert "no token was granted" in await made.said("alice")
        assert made.events("call") == [] and made.events("grant") == []
        await made.fault("")
        await made.log_in("alice")
        await made.gives("alice", "alice")


async def test_it_goes_on_without_the_person_while_the_company_wants_it_and_until_the_logout(
    tmp_path: Path,
) -> None:
    async with company(tmp_path, seconds=2) as made:
        await made.log_in("alice")
        assert await made.said("alice") == "alice"
        first = (await made.place("alice").load()).tokens

        async def renewed() -> Any:
            assert await made.said("alice") == "alice"
            tokens = (await made.place("alice").load()).tokens
            return tokens.access_token != first.access_token and tokens

        assert (await until_found(renewed, "her tokens are renewed")).refresh_token != first.refresh_token
        await made.fault("denied")
        await made.gives("alice", "the company does not want it")
        said = await cellblock(
            *("auth", "logout", made.people, "--principal", "oauth:alice"),
            *("--config", tmp_path / "cellblock.json", "--state-dir", tmp_path / "s"),
        )
        assert "revoked and forgotten" in said.out, said
        await made.gives("alice", "it needs a login of your own")
        # What the server's authorization server granted for her is over, too.
        await until(lambda: revoked(made, "wiki") != [], "her token there is revoked")
        assert {*revoked(made, "wiki"), *revoked(made, "idp")} == {200}
        assert {event["person"] for event in made.events("call")} == {"alice"}


@pytest.mark.thorough
async def test_of_several_brokers_one_renews_an_identity(tmp_path: Path) -> None:
    # A second use of a refresh token would end the whole login.
    async with company(tmp_path, seconds=2, brokers=2) as made:
        people = ("alice", "bob", "carol")
        for name in people:
            await made.log_in(name)
        places = [made.daemon, *made.others]
        for _ in range(8):
            asked = [(name, place) for name in people for place in places for _ in range(2)]
            said = await asyncio.gather(*(made.said(name, place) for name, place in asked))
            assert said == [name for name, _ in asked]
            await asyncio.sleep(1)
        renewals = [
            event["status"]
            for event in made.events("request")
            if event["form"].get("grant_type") == "refresh_token"
        ]
        assert len(renewals) > 6 and set(renewals) == {200}, renewals


async def test_an_id_token_is_exchanged_where_the_authorization_server_offers_it(tmp_path: Path) -> None:
    exchange = "urn:ietf:params:oauth:grant-type:token-exchange"
    async with company(tmp_path, "token_exchange") as made:
        await made.log_in("alice")
        assert await made.said("alice") == "alice"
        assert {event["grant"] for event in made.events("grant")} == {exchange}
        # Nothing was asked of the identity provider but who she is.
        at_people = [event["form"]["grant_type"] for event in made.events("request") if event["at"] == "idp"]
        assert set(at_people) == {"authorization_code"}
        text = (tmp_path / "ledger.jsonl").read_text()
        assert not any(token in text for token in made.clients.values())


async def test_an_exchange_that_the_authorization_server_does_not_offer_is_told(tmp_path: Path) -> None:
    offered = "urn:ietf:params:oauth:grant-type:jwt-bearer"
    async with company(tmp_path, "token_exchange", offered=offered) as made:
        page = await made.log_in("alice", ready=False)
        assert page.status_code == 400 and "does not offer token exchange" in page.text, page.text
        said = await cellblock(
            "auth", "login", "wiki", "--config", tmp_path / "cellblock.json", "--state-dir", tmp_path / "s"
        )
        status = await cellblock(
            "auth", "status", "--config", tmp_path / "cellblock.json", "--state-dir", tmp_path / "s"
        )
        assert status.out == "wiki: by identity; `cellblock auth list` shows who has logged in\n", status
        assert said.code != 0 and "Open /login/wiki of `cellblock serve --http`" in said.err, said
        assert made.events("call") == []
