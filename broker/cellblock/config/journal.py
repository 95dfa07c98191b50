"""Settings of journals say which runs are written down, for whom, and for how long."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator

from cellblock.config.policy import check_clients
from cellblock.config.sections import MIB, Section, of_word

JournalMode = Literal["off", "parked", "failed", "all"]

DAY_MS = 24 * 3_600_000


class JournalSettings(Section):
    """Sets which runs are kept, encrypted, in the state directory, to go on later, to be looked at and replayed. A word
    alone is the `mode`."""

    mode: JournalMode = "parked"
    """Keeps no run, those that wait for a person, also those that end with an error, or all. With `all`, each call is
    also written down before it is made and when its answer is there, so that a run survives a broker that is
    killed."""

    clients: dict[str, JournalMode] = Field(default_factory=dict[str, JournalMode])
    """Holds other values for single clients, by the names that `policy.clients` has for them."""

    park_after_ms: Annotated[int, Field(ge=0, le=3_600_000)] = 5_000
    """Sets how long a run waits for a person in its process, in milliseconds; then it is written down, and its process
    ends until the answer is there."""

    park_tools_after_ms: Annotated[int, Field(ge=0, le=3_600_000)] | None = None
    """Sets how long a tool may be at work before a run that waits for nothing else is written down, and its process
    ends until the answer is there, in milliseconds; null: it keeps its process. All runs are recorded for it."""

    parked_ttl_ms: Annotated[int, Field(ge=1_000, le=3_650 * DAY_MS)] = 7 * DAY_MS
    """Bounds how long a run waits for a person in all, in milliseconds; then it ends without the answer."""

    expire_ms: Annotated[int, Field(ge=1_000, le=3_650 * DAY_MS)] = 7 * DAY_MS
    """Bounds how long a run is kept, in milliseconds."""

    total_bytes: Annotated[int, Field(ge=MIB)] = 256 * MIB
    """Caps the disk that all kept runs may take together, of all processes that share one state directory, in bytes;
    the oldest go first."""

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
        """Returns which runs of one client are kept."""
        return self.clients.get(principal, self.mode)


Journal = Annotated[
    JournalSettings,
    BeforeValidator(of_word(get_args(JournalMode)), json_schema_input_type=JournalMode | JournalSettings),
]
