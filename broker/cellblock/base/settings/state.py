"""Settings of state say where brokers keep what they share, and which runs are written down, for whom, how long."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from socket import gethostname
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from cellblock.base.json import is_array
from cellblock.base.settings.policy import check_clients, of_clients
from cellblock.base.settings.sections import ALL, MIB, Section, by_name, value_for

KEY_BYTES: Final = 32


def _listed(given: Any) -> Any:
    return given if is_array(given) else [given]


class StateSettings(Section):
    """Sets where runs, outputs, pins, tokens, logins, quotas and observed shapes are kept: in files of the state
    directory, or in a PostgreSQL that brokers on several machines share."""

    url: Annotated[
        str,
        Field(
            pattern=r"^(sqlite:|postgresql://\S+)$", examples=["sqlite:", "postgresql://user@host/database"]
        ),
    ] = "sqlite:"
    """Names where state is kept. `sqlite:` means files of the state directory. `postgresql://user@host/database` with
    the parameters of libpq (`sslmode=verify-full&sslrootcert=…`) means a PostgreSQL, version 13 or later. It requires
    `cellblock[postgresql]` and a `key`. Give a password by reference: `${env:NAME}`."""

    key: Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=str | list[str])] = Field(
        default=[]
    )
    """Encrypts kept runs, and in a PostgreSQL also pins, tokens, logins and outputs. It also signs values that
    clients return, such as `requestState`. It is 32 bytes in base64, the same for all brokers, given by reference
    (`${env:NAME}`, `${file:/path}`). `openssl rand -base64 32` makes one. Without it, brokers with files make their
    own. A list of two has a second key that is accepted, too, while brokers change their key one after the other: the
    next key at first, then the previous one."""

    broker: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")] | None = None
    """Names this broker among those that share a PostgreSQL, each by a name of its own. The ids of its sessions begin
    with `NAME.`, by which a balancer finds the broker of a session. Absent: the name of the host."""

    @field_validator("key")
    @classmethod
    def _are_keys(cls, keys: list[str]) -> list[str]:
        if len(keys) > 2 or any(len(_decoded(key)) != KEY_BYTES for key in keys):
            raise ValueError(f"a key is {KEY_BYTES} bytes in base64: `openssl rand -base64 32` makes one")
        return keys

    @model_validator(mode="after")
    def _shares_key(self) -> StateSettings:
        if self.is_shared and not self.key:
            raise ValueError("brokers that share a PostgreSQL share a key: give state.key by reference")
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
        return tuple(map(_decoded, self.key))


def _decoded(key: str) -> bytes:
    try:
        return base64.b64decode(key.strip(), validate=True)
    except (ValueError, binascii.Error):
        return b""


JournalMode = Literal["off", "parked", "failed", "all"]


class ScriptSettings(Section):
    """Sets which scripts are kept, to be run again."""

    dir: Path | None = None
    """Names the folder of the files of kept scripts, which belongs under version control. A relative path begins at
    the folder of the configuration file. What runs is what a person has approved; that is in the state directory."""

    propose: list[str] = Field(default_factory=list[str])
    """Lists the clients, by their names in `policy.clients`, whose runs may propose a script with `propose: NAME`. It
    becomes a file that runs when a person has approved it."""

    @field_validator("propose")
    @classmethod
    def _known_kinds(cls, propose: list[str]) -> list[str]:
        check_clients(propose)
        return propose


DAY_MS = 24 * 3_600_000


class JournalSettings(Section):
    """Sets which runs are kept, encrypted, in the state directory: to continue later, to be looked at and to be
    replayed. A string in place of the section is the `mode`."""

    mode: Annotated[
        dict[str, JournalMode],
        BeforeValidator(by_name("parked"), json_schema_input_type=JournalMode | dict[str, JournalMode]),
        AfterValidator(of_clients),
    ] = Field(default={ALL: "parked"})
    """Says which runs are kept: `off` none; `parked` those that wait for a person; `failed` also those that end with
    an error; `all` every run. With `all`, the broker also records each call before it makes it and when its answer
    comes, so that a run survives a broker that is killed. An object has a value for each client, by its name in
    `policy.clients`; `*` stands for all others."""

    expire_ms: Annotated[int, Field(ge=1_000, le=3_650 * DAY_MS)] = 7 * DAY_MS
    """Bounds how long a run waits for a person in all, and how long it is kept when it has ended, in milliseconds."""

    total_bytes: Annotated[int, Field(ge=MIB)] = 256 * MIB
    """Caps the disk space of all kept runs together, over all processes that share one state directory, in bytes. The
    oldest are removed first."""

    @property
    def keeps(self) -> bool:
        """Says whether runs of anybody are kept when they have ended."""
        return any(mode in ("failed", "all") for mode in self.mode.values())

    @property
    def parks(self) -> bool:
        """Says whether runs of anybody are written down at all."""
        return any(mode != "off" for mode in self.mode.values())

    def for_client(self, principal: str) -> JournalMode:
        return value_for(principal, self.mode)


Journal = Annotated[
    JournalSettings,
    BeforeValidator(
        lambda given: {"mode": given} if isinstance(given, str) else given,
        json_schema_input_type=JournalMode | JournalSettings,
    ),
]
