"""Settings of state say where brokers keep what they share."""

from __future__ import annotations

import base64
import binascii
import re
from socket import gethostname
from typing import Annotated, Final

from pydantic import Field, field_validator, model_validator

from cellblock.base.settings.sections import Section

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

    broker: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")] | None = None
    """Names this broker among those that share a PostgreSQL, each by a name of its own. The ids of its sessions begin
    with `NAME.`, by which a balancer finds the broker of a session. Absent: the name of the host."""

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
    def broker_name(self) -> str:
        """Returns the name of this broker."""
        return self.broker or re.sub("[^A-Za-z0-9-]", "-", gethostname()).strip("-")[:63] or "broker"

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Returns the keys that are given; the first is the one that this broker seals with."""
        return tuple(_decoded(key) for key in (self.key, self.other_key) if key is not None)


def _decoded(key: str) -> bytes:
    try:
        return base64.b64decode(key.strip(), validate=True)
    except (ValueError, binascii.Error):
        return b""
