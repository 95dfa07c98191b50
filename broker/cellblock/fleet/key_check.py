"""Key_check finds out whether a broker has the key with which what is in a PostgreSQL was sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cellblock.base.database import Unusable

if TYPE_CHECKING:
    from cellblock.fleet.postgresql import Connection

KIND: Final = "state"

MIGRATIONS: Final[Sequence[str]] = (
    """
    CREATE TABLE state (one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one), key TEXT NOT NULL);
    """,
)

OTHER: Final = "state.key is another one than that of the brokers before, and is not accepted by them"


def claim(connection: Connection, ids: Sequence[str]) -> None:
    """Says that this broker writes with the first of its keys, where that is accepted: where nobody has written yet, or
    with one that this broker accepts, too."""
    connection.execute(b"INSERT INTO cellblock.state (key) VALUES (%s) ON CONFLICT DO NOTHING", (ids[0],))
    connection.execute(b"UPDATE cellblock.state SET key = %s WHERE key = ANY(%s)", (ids[0], list(ids)))


def check(connection: Connection, ids: Sequence[str]) -> None:
    """Returns where this broker accepts the key of whoever came last.

    Raises:
        Unusable: It does not, and so can read nothing of the others', nor they of it.
    """
    row = connection.execute(b"SELECT key FROM cellblock.state").fetchone()
    if row is not None and row[0] not in ids:
        raise Unusable(OTHER)
