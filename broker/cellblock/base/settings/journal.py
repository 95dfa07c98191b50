"""Settings of journals say which runs are written down, for whom, and for how long."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator

from cellblock.base.settings.policy import check_clients
from cellblock.base.settings.sections import MIB, Section, of_word

JournalMode = Literal["off", "parked", "failed", "all"]

DAY_MS = 24 * 3_600_000


class JournalSettings(Section):
    """Sets which runs are kept, encrypted, in the state directory: to continue later, to be looked at and to be
    replayed. A string in place of the section is the `mode`."""

    mode: JournalMode = "parked"
    """Says which runs are kept: `off` none; `parked` those that wait for a person; `failed` also those that end with
    an error; `all` every run. With `all`, the broker also records each call before it makes it and when its answer
    comes, so that a run survives a broker that is killed."""

    clients: dict[str, JournalMode] = Field(default_factory=dict[str, JournalMode])
    """Holds other values for single clients, by their names in `policy.clients`."""

    expire_ms: Annotated[int, Field(ge=1_000, le=3_650 * DAY_MS)] = 7 * DAY_MS
    """Bounds how long a run waits for a person in all, and how long it is kept when it has ended, in milliseconds."""

    total_bytes: Annotated[int, Field(ge=MIB)] = 256 * MIB
    """Caps the disk space of all kept runs together, over all processes that share one state directory, in bytes. The
    oldest are removed first."""

    @field_validator("clients")
    @classmethod
    def _known_kinds(cls, clients: dict[str, JournalMode]) -> dict[str, JournalMode]:
        check_clients(clients)
        return clients

    @property
    def keeps(self) -> bool:
        """Says whether runs of anybody are kept when they have ended."""
        return any(mode in ("failed", "all") for mode in (self.mode, *self.clients.values()))

    @property
    def parks(self) -> bool:
        """Says whether runs of anybody are written down at all."""
        return any(mode != "off" for mode in (self.mode, *self.clients.values()))

    def for_client(self, principal: str) -> JournalMode:
        return self.clients.get(principal, self.mode)


Journal = Annotated[
    JournalSettings,
    BeforeValidator(of_word(get_args(JournalMode)), json_schema_input_type=JournalMode | JournalSettings),
]
