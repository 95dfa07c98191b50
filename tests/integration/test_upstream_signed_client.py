"""Client credentials with a private key: it signs an assertion for each token and is shown to nobody (RFC 7523)."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from support.brokers import ready
from support.oauth_world import World, world
from support.responses import succeeded
from support.waits import within

WHOAMI = """
    import { whoami } from "@codemode/servers/notes";
    globalThis.__codemode_result__ = await whoami({});
"""

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def written(folder: Path, key: Key) -> tuple[Path, Path]:
    """The private key and the public one, each as a file."""
    private, public = folder / "private.pem", folder / "public.pem"
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
    caplog.set_level(logging.DEBUG)
    private, public = written(tmp_path, key())
    async with world(tmp_path, "--client-key", str(public), auth=auth(private)) as place:
        async with ready(place.settings) as broker:
            assert succeeded(await within(broker.run(WHOAMI))) == "ada"
        assert place.events("assertion") == [{"event": "assertion", "algorithm": algorithm}]
        (granted,) = place.events("client credentials")
        assert (granted["resource"], granted["scope"]) == (place.url, "notes")
        assert not list(place.state.glob("auth/*.json")), "nothing is kept"
    line = private.read_text("ascii").splitlines()[1]
    assert caplog.text and line not in caplog.text


async def test_another_key_is_refused(tmp_path: Path) -> None:
    _, public = written(tmp_path, rsa_key())
    other = tmp_path / "other"
    other.mkdir()
    private, _ = written(other, rsa_key())
    async with world(tmp_path, "--client-key", str(public), auth=auth(private)) as place:
        refused = await why_not(place)
        assert "no token was granted (invalid_client: not); correct cellblock.auth.servers.notes" in refused
        assert place.events("assertion refused")[0]["why"] == "InvalidSignatureError"


@pytest.mark.parametrize(
    "content",
    ["no key", "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----"],
    ids=["no PEM", "a broken PEM"],
)
async def test_a_key_that_cannot_sign_is_said_and_not_shown(tmp_path: Path, content: str) -> None:
    private, public = written(tmp_path, rsa_key())
    private.write_text(content, "ascii")
    async with world(tmp_path, "--client-key", str(public), auth=auth(private)) as place:
        refused = await why_not(place)
        assert "the client's private key cannot sign" in refused
        assert "cellblock.auth.servers.notes" in refused
        assert place.events("assertion") == place.events("assertion refused") == []


async def test_the_key_signs_for_its_issuer_only(tmp_path: Path) -> None:
    private, public = written(tmp_path, rsa_key())
    own = auth(private, issuer="https://login.example/")
    async with world(tmp_path, "--client-key", str(public), auth=own) as place:
        assert "no token was granted" in await why_not(place)
        assert place.events("assertion") == place.events("assertion refused") == []
