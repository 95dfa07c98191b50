"""Named tokens are made by `cellblock token create`, one file each, or one row that brokers share; what is kept is a
hash, a grant and an end.

Each stands alone and is made or removed in one step, so that processes need no lock. A daemon looks at a token's stamp
with every request: one that was made or revoked counts at once; where brokers share it, within two seconds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import time
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cellblock.base.errors import ConfigError
from cellblock.base.settings.policy import NAMED, Grant
from cellblock.base.store import Stamp, Store
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock_worker.base.folders import InTheWay
from cellblock_worker.base.private_files import OpenToOthers

logger = logging.getLogger("cellblock.policy")

TOKENS_DIR: Final = "tokens"
"""Names the folder of named tokens in the state directory."""

NAME: Final = r"[a-z0-9][a-z0-9_-]{0,62}"
"""Matches names of tokens: also as files, and where capital letters are no difference."""

SECRET_BYTES: Final = 32

MAX_FILE_BYTES: Final = 1024 * 1024
"""Bounds a token's file; its grant is most of it."""

_TOKEN: Final = re.compile(rf"cellblock\.({NAME})\.[A-Za-z0-9_-]{{43}}")

EVERYTHING: Final = Grant()
"""Takes nothing away from what the policy grants."""

NOTHING: Final = Grant(tools=[])
"""Grants nothing, to a token that is not good, or no longer good."""


class _Record(BaseModel):
    """Describes what a token's file holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    name: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    created: int
    expires: int | None = None
    grants: Grant = Grant()


@dataclass(frozen=True, slots=True)
class Issued:
    """Tells the facts of a token, which nobody can tell again.

    Args:
        name: Its name.
        created: Seconds since 1970.
        expires: The same of its end; None: it has none.
        grants: What it may call, of what the policy has for it.
        problem: Why it is not accepted; None where it is.
    """

    name: str
    created: int = 0
    expires: int | None = None
    grants: Grant = EVERYTHING
    problem: str | None = None


class NamedTokens:
    """Keeps named tokens.

    Args:
        store: Where they are.
    """

    def __init__(self, store: Store) -> None:
        self._shelf = store.shelf(TOKENS_DIR, MAX_FILE_BYTES)
        self._read: dict[str, tuple[Stamp, _Record | str]] = {}

    def create(self, name: str, *, grants: Grant = EVERYTHING, expires: int | None = None) -> str:
        """Makes a token and gives its text, which is kept nowhere.

        Raises:
            ConfigError: There is one of that name, the name cannot be used, or the file cannot be written.
        """
        if re.fullmatch(NAME, name) is None:
            raise ConfigError(
                f"{name[:100]!r} is no name for a token.",
                hint="Use 1 to 63 of a-z, 0-9, - and _, with a letter or a digit first.",
            )
        token = f"cellblock.{name}.{secrets.token_urlsafe(SECRET_BYTES)}"
        record = _Record(
            name=name, sha256=_hash(token), created=int(time.time()), expires=expires, grants=grants
        )
        data = json.dumps(
            record.model_dump(mode="json", by_alias=True, exclude_defaults=True) | {"format": 1}
        )
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(
                f"The grants of a token take over {MAX_FILE_BYTES:,} bytes.", hint="Give simpler schemas."
            )
        try:
            made = self._shelf.write(name, data.encode(), replace=False)
        except OSError as error:
            raise self._failed(error) from None
        if not made:
            raise ConfigError(
                f"There is a token {name} already.",
                hint=f"Use another name, or revoke that one first: cellblock token revoke {name}.",
            )
        return token

    def revoke(self, name: str) -> None:
        """Removes a token. Raises ConfigError: there is none of that name, or it cannot be removed."""
        try:
            if re.fullmatch(NAME, name) is None:
                raise FileNotFoundError
            self._shelf.remove(name)
        except FileNotFoundError:
            known = [issued.name for issued in self.all()]
            there = f"There are: {', '.join(known)}." if known else "There are none."
            hint = did_you_mean(nearest_names(name, known, 1), there)
            raise ConfigError(f"There is no token {name[:100]}.", hint=hint) from None
        except OSError as error:
            raise self._failed(error) from None

    def all(self) -> list[Issued]:
        """Returns all tokens by name, those too that are not accepted. Raises ConfigError: they cannot be read."""
        try:
            names = self._shelf.names()
        except OSError as error:
            raise self._failed(error) from None
        found = [(name, self._record(name)) for name in names if re.fullmatch(NAME, name)]
        return [_issued(name, record) for name, record in found if record is not None]

    @property
    def any(self) -> bool:
        """Says whether there is a named token, good or not."""
        try:
            return bool(self._shelf.names())
        except OSError:
            return False

    def name_of(self, token: str) -> str | None:
        """Returns the name of a token that is good now; None for any other text."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        record = self._good(match[1])
        # The same work for a name that does not exist.
        wanted = record.sha256 if record is not None else _hash("")
        is_right = secrets.compare_digest(_hash(token), wanted)
        return record.name if record is not None and is_right else None

    def grant_of(self, principal: str) -> Grant | None:
        """Returns what a token's own grant is; nothing at all for one that is not good (any more); None for a principal
        that is no token's."""
        if not principal.startswith(NAMED):
            return None
        record = self._good(principal.removeprefix(NAMED))
        return NOTHING if record is None else record.grants

    # ---- inside ------------------------------------------------------------------------------------------

    def _good(self, name: str) -> _Record | None:
        record = self._record(name)
        if not isinstance(record, _Record) or _is_over(record):
            return None
        return record

    def _record(self, name: str) -> _Record | str | None:
        """Returns what is in a token's file, or what is wrong with it; None: there is none."""
        if re.fullmatch(NAME, name) is None:
            return None
        stamp = self._shelf.stamp(name)
        if stamp is None:
            self._read.pop(name, None)
            return None
        held = self._read.get(name)
        if held is None or held[0] != stamp:
            record = self._load(name)
            if isinstance(record, str):
                logger.warning("the token %s is not accepted: its file %s", name, record)
            held = self._read[name] = stamp, record
        return held[1]

    def _load(self, name: str) -> _Record | str:
        try:
            record = _Record.model_validate_json(self._shelf.read(name))
        except InTheWay as error:
            return f"cannot be used: {error}"
        except OpenToOthers as error:
            return f"may be read or written by other users (mode {error.mode:04o})"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        except ValidationError:
            return "is damaged"
        return record if record.name == name else "is another token's"

    def _failed(self, error: OSError) -> ConfigError:
        said = (
            str(error)
            if isinstance(error, InTheWay)
            else f"{self._shelf.place} cannot be used: {error.strerror}"
        )
        hint = "Check state.url." if self._shelf.is_shared else "Move it away, or use another --state-dir."
        return ConfigError(f"{said}.", hint=hint)


def _issued(name: str, record: _Record | str) -> Issued:
    if isinstance(record, str):
        return Issued(name, problem=f"its file {record}")
    problem = "it has expired" if _is_over(record) else None
    return Issued(name, record.created, record.expires, record.grants, problem)


def _is_over(record: _Record) -> bool:
    return record.expires is not None and record.expires <= time.time()


def _hash(token: str) -> str:
    # The text is 32 random bytes: nothing that a slow hash would protect better.
    return hashlib.sha256(token.encode("latin-1")).hexdigest()
