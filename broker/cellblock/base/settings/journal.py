"""Settings of journals say which runs are written down, for whom, and for how long."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator

from cellblock.base.settings.policy import check_clients
from cellblock.base.settings.sections import ALL, MIB, Section, by_name, of_word, value_for

JournalMode = Literal["off", "parked", "failed", "all"]

DAY_MS = 24 * 3_600_000


class JournalSettings(Section):
    """Sets which runs are kept, encrypted, in the state directory: to continue later, to be looked at and to be
    replayed. A string in place of the section is the `mode`."""

    mode: Annotated[
        dict[str, JournalMode],
        BeforeValidator(by_name("parked"), json_schema_input_type=JournalMode | dict[str, JournalMode]),
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

    @field_validator("mode")
    @classmethod
    def _known_kinds(cls, mode: dict[str, JournalMode]) -> dict[str, JournalMode]:
        check_clients(mode.keys() - {ALL})
        return mode

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
    BeforeValidator(of_word(get_args(JournalMode)), json_schema_input_type=JournalMode | JournalSettings),
]
