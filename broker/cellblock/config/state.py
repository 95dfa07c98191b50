"""Settings of state say where brokers keep what they share, and those of replicas how they reach each other."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from cellblock.base.loopback import is_loopback
from cellblock.config.sections import Section

KEY_BYTES: Final = 32


class StateSettings(Section):
    """Sets where runs, outputs, pins, tokens, logins, quotas and observed shapes are kept: in files of the state
    directory, or in a PostgreSQL that brokers on several machines share."""

    url: Annotated[str, Field(pattern=r"^(sqlite:|postgresql://\S+)$")] = "sqlite:"
    """Names where state is kept. `sqlite:` means files of the state directory. `postgresql://user@host/database` with
    the parameters of libpq (`sslmode=verify-full&sslrootcert=…`) means a PostgreSQL, version 13 or later. It requires
    `cellblock[postgresql]` and a `key`. Give a password by reference: `${env:NAME}`."""

    key: str | None = None
    """Encrypts kept runs, and in a PostgreSQL also pins, tokens, logins and outputs. It also signs values that
    clients return, such as `requestState`. It is 32 bytes in base64, the same for all brokers, given by reference
    (`${env:NAME}`, `${file:/path}`). `openssl rand -base64 32` makes one. Without it, brokers with files make their
    own."""

    other_key: str | None = None
    """Names a second key that is accepted beside `key`, to read older data while brokers change their key one after
    the other: the next key at first, then the previous one."""

    @field_validator("key", "other_key")
    @classmethod
    def _is_key(cls, key: str | None) -> str | None:
        if key is not None and len(_decoded(key)) != KEY_BYTES:
            raise ValueError(f"a key is {KEY_BYTES} bytes in base64: `openssl rand -base64 32` makes one")
        return key

    @model_validator(mode="after")
    def _shares_key(self) -> StateSettings:
        if self.is_shared and self.key is None:
            raise ValueError("brokers that share a PostgreSQL share a key: give state.key by reference")
        if self.other_key is not None and self.key is None:
            raise ValueError("other_key is accepted beside a key: give state.key")
        return self

    @property
    def is_shared(self) -> bool:
        """Says whether brokers on several machines share it."""
        return self.url.startswith("postgresql:")

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Returns the keys that are given; the first is the one that this broker seals with."""
        return tuple(_decoded(key) for key in (self.key, self.other_key) if key is not None)


class ReplicaSettings(Section):
    """Makes this broker one of several behind one address, which find each other in the PostgreSQL of `state.url`.
    Each answers requests for its own sessions and runs, and passes the others on."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/@?#]+/?$")] | None = None
    """Names the URL at which the other brokers reach this one alone, such as `https://${env:POD_IP}:7433`. Absent:
    the address that it listens on. `http` is for the loopback alone. The environment variable `SSL_CERT_FILE` names
    your own authority for `https`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")] | None = None
    """Sets the name in each broker's certificate, such as `cellblock.example.com`, because nobody issues a
    certificate for a pod's address. Absent: the host of its `url`."""

    @field_validator("url")
    @classmethod
    def _is_closed(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        try:
            _ = parts.port
        except ValueError:
            raise ValueError("its port cannot be read: an IPv6 address stands in brackets") from None
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError(
                "requests would be passed on with clients' tokens in the clear: give an https URL"
            )
        return url


def _decoded(key: str) -> bytes:
    try:
        return base64.b64decode(key.strip(), validate=True)
    except (ValueError, binascii.Error):
        return b""
