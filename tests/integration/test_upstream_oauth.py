"""Tokens of a real authorization server through a broker: expiry, renewal, revocation, several processes, no leaks.

With client credentials, scopes that a call lacks are asked for once, and only what the authorization server grants; a
private key signs an assertion for each token and is shown to nobody (RFC 7523).
"""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import keyring
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from keyring.backends import null

from cellblock import Broker
from cellblock.tools.upstream.auth.login import log_in, log_out, status_of
from support.brokers import host_of, ready
from support.certificates import certificate
from support.entries import WARM, settings
from support.haproxy import KEY
from support.http_server import Answering, free_port, serving
from support.oauth_world import World, world
from support.postgresql import Postgres
from support.processes import descendants, told_to
from support.responses import succeeded
from support.ring import Ring
from support.waits import steady, until, until_found, warmed, within

pytestmark = pytest.mark.usefixtures("quick_retries")

WHOAMI = (
    'import { whoami } from "@codemode/servers/notes"; globalThis.__codemode_result__ = await whoami({});'
)

TOLD = """
    import { CALL } from "@codemode/servers/notes";
    try { globalThis.__codemode_result__ = await CALL({}); } catch (error) {
        const { name, message, hint, certainty } = error;
        globalThis.__codemode_result__ = { name, message, hint, certainty };
    }
"""


async def told(broker: Broker, tool: str) -> Any:
    """The result of a call, or what its script is told of its failure."""
    return succeeded(await within(broker.run(TOLD.replace("CALL", tool))))


@asynccontextmanager
async def logged_in(folder: Path, *options: str) -> AsyncGenerator[tuple[World, Broker]]:
    """A broker that has begun after a login."""
    async with world(folder, *options) as place:
        await place.log_in()
        async with ready(place.settings) as broker:
            yield place, broker


async def whoami(broker: Broker) -> Any:
    return succeeded(await within(broker.run(WHOAMI)))


NARROW = {
    "name": "AuthenticationError",
    "certainty": "not_started",
    "message": "notes refused write: HTTP 403; the login does not reach far enough (insufficient_scope: it needs "
    "notes:write).",
}
"""Without the hint."""


async def expired(place: World, life: float = 2.0) -> None:
    """Until the last access token has ended at the server; its life starts when it is granted."""
    granted = (place.folder / "ledger.jsonl").stat().st_mtime
    await until(lambda: time.time() > granted + life + 0.2, "the token has expired")


async def test_a_token_is_renewed_before_and_after_its_end_and_the_end_is_told(
    tmp_path: Path, records: list[str]
) -> None:
    async with world(tmp_path, "--life", "2", pool={"warm": WARM}) as place:
        await place.log_in()
        async with ready(place.settings) as broker:
            assert await whoami(broker) == "ada"
            await expired(place)
            before = len(place.events("refresh"))
            # Many at once: one renewal, since a second use of the old token would end the login.
            many = WHOAMI.replace("await whoami({})", "await Promise.all([1, 2, 3, 4].map(() => whoami({})))")
            assert succeeded(await within(broker.run(many))) == ["ada"] * 4
            assert len(place.events("refresh")) == before + 1
            assert {event["resource"] for event in place.events("refresh")} == {place.url}
            leaked = await told(broker, "confess")
            assert "leak: Bearer [redacted]" in leaked["message"], leaked

            await place.end_logins()
            error = await told(broker, "whoami")
            message = error.pop("message")
            assert "HTTP 401; the authorization server has ended the login (invalid_grant: " in message
            hint = "Run: cellblock auth login notes."
            assert error == {"name": "AuthenticationError", "certainty": "not_started", "hint": hint}
            ended = len(place.events("refresh"))
            assert (await told(broker, "whoami"))["hint"] == hint
            assert len(place.events("refresh")) == ended, "an ended login is not renewed again and again"
            assert (await status_of(place.place()))["state"] == "ended"

            # A new login is seen by the daemon that runs.
            await place.log_in()
            assert await whoami(broker) == "ada"

            await warmed(broker, 1)
            own = host_of(broker)
            host = [own, *await steady(lambda: descendants(own.pid), "the same processes")]
            texts = [text for process in host for text in told_to(process)]
        texts += [json.dumps(leaked), message, *records]
        texts += [
            file.read_bytes().decode("utf-8", "replace")
            for file in place.state.rglob("*")
            if file.is_file() and file.parent.name != "auth"
        ]
        tokens = place.tokens()
        assert len(tokens) >= 6
        assert any("cellblock.tools.upstream" in text for text in texts)
        assert [text[:200] for text in texts if any(token in text for token in tokens)] == []


async def test_two_processes_that_renew_at_once_do_not_lose_the_login(tmp_path: Path) -> None:
    """Each refresh token is good once; a second use ends the login. The renewal takes its time, so that they meet."""
    async with world(tmp_path, "--life", "2", "--slow-token", "300") as place:
        await place.log_in()
        script = tmp_path / "script.js"
        script.write_text(WHOAMI)
        async with Broker(place.settings) as one, Broker(place.settings) as two:
            await within(asyncio.gather(one.settled(), two.settled()))
            await expired(place)
            other = asyncio.create_task(place.run("run", str(script)))
            runs = await within(asyncio.gather(one.run(WHOAMI), two.run(WHOAMI)))
            assert [succeeded(run) for run in runs] == ["ada", "ada"]
            assert (await other).code == 0
        assert place.events("refresh") and not place.events("refresh reused")


@pytest.mark.thorough
async def test_two_brokers_that_share_a_login_renew_it_once(
    tmp_path: Path, postgres: Postgres, postgres_url: str
) -> None:
    """With nothing else in common than PostgreSQL. While that is away, a token is used and not renewed."""
    state = {"url": postgres_url, "key": KEY}
    # A machine that is busy takes seconds from the renewal to the last request of a connection.
    async with world(tmp_path, "--life", "6", "--slow-token", "300", state=state) as place:
        assert "in PostgreSQL" in (await place.run("auth", "login", "notes")).out
        assert "logged in" in (await place.run("auth", "status", "notes")).out
        elsewhere = settings(tmp_path / "elsewhere", place.servers, **place.cellblock)
        async with Broker(place.settings) as one, Broker(elsewhere) as two:
            await within(asyncio.gather(one.settled(), two.settled()))
            await expired(place, 6)
            runs = await within(asyncio.gather(one.run(WHOAMI), two.run(WHOAMI)))
            assert [succeeded(run) for run in runs] == ["ada", "ada"]
            postgres.stop()
            try:
                await expired(place, 6)
                assert "PostgreSQL" in (await within(one.run(WHOAMI))).diagnostics[0].message
            finally:
                postgres.start()

            async def again() -> bool:
                return (await one.run(WHOAMI)).result == "ada"

            await until_found(again, "it is renewed when PostgreSQL is back", pause=0.2)
        assert place.events("refresh") and not place.events("refresh reused")
        for folder in (place.state, tmp_path / "elsewhere"):
            assert not (folder / "auth").exists()


async def test_a_call_that_is_cancelled_while_the_token_is_renewed_loses_no_token(tmp_path: Path) -> None:
    async with logged_in(tmp_path, "--life", "2", "--slow-token", "1000") as (place, broker):
        await expired(place)
        before = len(place.events("refresh"))
        run = asyncio.create_task(broker.run(WHOAMI))
        await until(lambda: len(place.events("refresh")) > before, "the renewal is under way")
        run.cancel()
        await asyncio.wait([run])
        assert await whoami(broker) == "ada"
    assert not place.events("refresh reused")


async def test_an_authorization_server_that_is_away_ends_no_login(tmp_path: Path) -> None:
    async with logged_in(tmp_path, "--life", "2") as (place, broker):
        place.process.kill()
        await place.process.wait()
        await expired(place)
        assert not (await within(broker.run(WHOAMI))).ok
    assert (await status_of(place.place()))["state"] == "logged in"


async def test_where_a_server_has_headers_they_may_be_what_it_refuses(tmp_path: Path) -> None:
    async with world(tmp_path) as place:
        place.entry["headers"] = {"X-Api-Key": "old"}
        async with ready(place.settings) as broker:
            reason = broker.catalog.unavailable["notes"]
            [error] = (await within(broker.run(WHOAMI))).diagnostics
    assert (error.code, error.error_class) == ("IMPORT_FAILURE", "AuthenticationError")
    assert reason.endswith("run: cellblock auth login notes, or correct X-Api-Key in its headers")


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_login_while_the_daemon_waits_is_seen_at_once_and_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.lifecycle.FIRST_PAUSE_SECONDS", 600.0)
    async with world(tmp_path, "--life", "2", transport=transport) as place, ready(place.settings) as broker:
        reason = broker.catalog.unavailable["notes"]
        assert reason == "the server refused the connection: HTTP 401; run: cellblock auth login notes"
        await place.log_in()
        await until(lambda: "notes" in broker.catalog.servers, "the daemon has seen the login")
        await expired(place)
        assert await whoami(broker) == "ada"
        assert place.events("refresh")


async def test_client_credentials_are_shown_to_their_issuer_only(
    tmp_path: Path, records: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "canary-client-secret-71c5"
    own = {
        "grant": "client_credentials",
        "issuer": "ISSUER",
        "client_id": "robot",
        "client_secret_env": "NOTES_SECRET",
        "scopes": ["notes"],
    }
    monkeypatch.setenv("NOTES_SECRET", secret)
    client = ("--client", f"robot:{secret}")
    async with world(tmp_path, "--life", "2", *client, auth={"servers": {"notes": own}}) as place:
        async with ready(place.settings) as broker:
            assert await whoami(broker) == "ada"
            await expired(place)
            assert await whoami(broker) == "ada"
            granted = place.events("client credentials")
            assert len(granted) >= 2
            assert (granted[0]["resource"], granted[0]["scope"]) == (place.url, "notes")
        done = await log_in(place.place(), browser=None, bound=1, say=print)
        assert "a token was granted" in done
        assert not list(place.state.glob("auth/*.json")), "nothing is kept"
        tokens = [secret, *place.tokens()]

        monkeypatch.setenv("NOTES_SECRET", f"wrong-{secret}")
        async with ready(place.settings) as broker:
            refused = broker.catalog.unavailable["notes"]
            assert (
                "no token was granted (invalid_client: not [redacted]); correct cellblock.auth.servers.notes"
                in refused
            )
        texts = [*records, refused, done]
        assert [text[:200] for text in texts if any(token in text for token in tokens)] == []

        monkeypatch.setenv("NOTES_SECRET", secret)
        place.cellblock["auth"]["servers"]["notes"]["issuer"] = "https://login.example/"
        asked = len(place.events("client credentials"))
        async with ready(place.settings) as broker:
            assert "no token was granted" in broker.catalog.unavailable["notes"]
        assert len(place.events("client credentials")) == asked


async def test_a_client_id_metadata_document_is_the_client(tmp_path: Path) -> None:
    """The authorization server fetches the document over TLS; nobody registers anything."""
    cert, key = certificate(tmp_path)
    port = free_port()
    document: dict[str, object] = {
        "client_name": "Cellblock",
        "redirect_uris": [f"http://127.0.0.1:{port}/callback"],
        "token_endpoint_auth_method": "none",
    }

    class Document(Answering):
        def do_GET(self) -> None:
            self.answer(200, json.dumps(document).encode())

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    with serving(Document, tls) as address:
        url = f"https://{address}/cellblock.json"
        document["client_id"] = url
        auth = {"servers": {"notes": {"client_id": url, "redirect_port": port}}}
        async with world(tmp_path, "--life", "2", "--metadata-ca", str(cert), auth=auth) as place:
            await place.log_in()
            assert {event["client"] for event in place.events("authorize")} == {url}
            async with ready(place.settings) as broker:
                await expired(place)
                assert await whoami(broker) == "ada"
            assert place.events("client metadata") and place.events("refresh")
            assert not place.events("register")


async def test_a_keyring_keeps_the_login_and_one_that_hangs_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: Ring
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.auth.store.KEYRING_SECONDS", 1.0)
    async with world(tmp_path, "--life", "2", auth={"keyring": "auto"}) as place:
        assert "in the system's keyring" in await place.log_in()
        [file] = place.state.glob("auth/*.json")
        assert not any(token in file.read_text() for token in place.tokens())
        assert any(token in str(ring.entries) for token in place.tokens())
        assert (await status_of(place.place()))["kept"] == "keyring"
        async with ready(place.settings) as broker:
            await expired(place)
            assert await whoami(broker) == "ada"
            assert place.tokens()[-1] in str(ring.entries), "a renewed login is kept there, too"

        ring.waits = threading.Event()
        status = await within(status_of(place.place()))
        assert (status["state"], status["problem"]) == (
            "unreadable",
            "The keyring has not answered within 1 s.",
        )
        assert "the login is kept in" in await place.log_in()
        assert place.tokens()[-1] in file.read_text()
        ring.waits.set()
        assert "revoked and forgotten" in await log_out(place.place().store(), "notes")
        assert not file.exists()

        keyring.set_keyring(null.Keyring())
        assert "state/auth/notes-" in await place.log_in()


async def test_a_login_that_does_not_reach_far_enough(tmp_path: Path) -> None:
    """The error names the command, and the command then asks for what was missing, and for what was granted before."""
    async with logged_in(tmp_path) as (place, broker):
        assert await told(broker, "write") == {**NARROW, "hint": "Run: cellblock auth login notes."}
        assert (await status_of(place.place()))["wantedScope"] == "notes offline_access notes:write"
        assert await whoami(broker) == "ada", "the login is as good as before"

        done = await place.run("auth", "login", "notes")
        assert done.code == 0 and "Not granted" not in done.out, done
        first, last = place.events("authorize")
        assert first["scopes"] == ["notes", "offline_access"]
        assert set(last["scopes"]) == {"notes", "notes:write", "offline_access"}
        assert await told(broker, "write") == "ada", "without a restart"
        assert "wantedScope" not in await status_of(place.place())


SECRET = "canary-client-secret-2f80"

AUTH = {
    "servers": {
        "notes": {
            "grant": "client_credentials",
            "issuer": "ISSUER",
            "client_id": "robot",
            "client_secret": SECRET,
            "scopes": ["notes"],
        }
    }
}

CLIENT = ("--client", f"robot:{SECRET}", "--client-scope")


def asked(place: World) -> list[str]:
    """The scopes of each grant that was asked for."""
    return [event["scope"] for event in place.events("client credentials")]


async def test_a_token_that_is_too_narrow_is_widened_once(tmp_path: Path) -> None:
    """Calls at once ask once; what was widened stays wide when it is renewed; each call is made once."""
    options = (*CLIENT, "notes notes:write", "--life", "3")
    async with world(tmp_path, *options, auth=AUTH) as place, ready(place.settings) as broker:
        assert await asyncio.gather(*(told(broker, "write") for _ in range(3))) == ["ada"] * 3
        # On a busy machine a token may expire, and be renewed, at any moment: the narrow one before it is widened.
        scopes = asked(place)
        narrow = scopes.index("notes notes:write")
        assert scopes[:narrow] == ["notes"] * narrow and narrow >= 1
        assert set(scopes[narrow:]) == {"notes notes:write"}
        await expired(place, 3)
        before = len(asked(place))
        assert await told(broker, "write") == "ada"
        assert set(asked(place)[before:]) == {"notes notes:write"}
    assert sum(event.get("tool") == "write" for event in place.events("call")) == 4


async def test_what_the_authorization_server_does_not_grant_is_said_and_not_asked_for_again(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, *CLIENT, "notes", auth=AUTH) as place:
        async with ready(place.settings) as broker:
            hint = f"Have {place.issuer} grant notes:write to the client robot."
            assert [await told(broker, "write") for _ in range(3)] == [{**NARROW, "hint": hint}] * 3
            assert await whoami(broker) == "ada", "the token is as good as before"
        assert asked(place) == ["notes", "notes notes:write"]
    assert not [event for event in place.events("call") if event["tool"] == "write"]


Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def written(folder: Path, key: Key | None = None, name: str = "") -> tuple[Path, Path]:
    """The private key and the public one, each as a file."""
    key = key or rsa_key()
    private, public = folder / f"{name}private.pem", folder / f"{name}public.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def auth(private: Path, **changes: Any) -> dict[str, Any]:
    own = {
        "grant": "client_credentials",
        "client_auth_method": "private_key_jwt",
        "client_id": "signer",
        "client_secret_file": str(private),
        "issuer": "ISSUER",
        "scopes": ["notes"],
        **changes,
    }
    return {"servers": {"notes": own}}


async def why_not(place: World) -> str:
    async with ready(place.settings) as broker:
        return broker.catalog.unavailable["notes"]


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        pytest.param("RS256", rsa_key, id="RS256", marks=pytest.mark.thorough),
        pytest.param("ES256", lambda: ec.generate_private_key(ec.SECP256R1()), id="ES256"),
        pytest.param("EdDSA", ed25519.Ed25519PrivateKey.generate, id="EdDSA"),
    ],
)
async def test_a_key_signs_for_each_token(
    tmp_path: Path, algorithm: str, key: Callable[[], Key], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    private, public = written(tmp_path, key())
    async with world(tmp_path, "--client-key", str(public), auth=auth(private)) as place:
        async with ready(place.settings) as broker:
            assert await whoami(broker) == "ada"
        assert place.events("assertion") == [{"event": "assertion", "algorithm": algorithm}]
        (granted,) = place.events("client credentials")
        assert (granted["resource"], granted["scope"]) == (place.url, "notes")
        assert not list(place.state.glob("auth/*.json")), "nothing is kept"
    assert caplog.text and private.read_text("ascii").splitlines()[1] not in caplog.text


async def test_another_key_is_refused(tmp_path: Path) -> None:
    _, public = written(tmp_path)
    private, _ = written(tmp_path, name="other-")
    async with world(tmp_path, "--client-key", str(public), auth=auth(private)) as place:
        refused = await why_not(place)
        assert "no token was granted (invalid_client: not); correct cellblock.auth.servers.notes" in refused
        assert place.events("assertion refused")[0]["why"] == "InvalidSignatureError"


@pytest.mark.parametrize(
    ("content", "changes", "said"),
    [
        ("no key", {}, "the client's private key cannot sign"),
        (
            "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----",
            {},
            "the client's private key cannot sign",
        ),
        (None, {"issuer": "https://login.example/"}, "no token was granted"),
    ],
    ids=["no PEM", "a broken PEM", "another issuer"],
)
async def test_a_key_that_cannot_sign_is_said_and_not_shown_and_it_signs_for_its_issuer_only(
    tmp_path: Path, content: str | None, changes: dict[str, str], said: str
) -> None:
    private, public = written(tmp_path)
    private.write_text(content or private.read_text("ascii"), "ascii")
    async with world(tmp_path, "--client-key", str(public), auth=auth(private, **changes)) as place:
        refused = await why_not(place)
        assert said in refused and "cellblock.auth.servers.notes" in refused
        assert place.events("assertion") == place.events("assertion refused") == []
