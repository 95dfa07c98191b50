"""Labels are a lattice: who may know something, and whether strangers may have written it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from cellblock.base.json import is_array, is_object
from cellblock.base.settings.policy import Secrecy

Audience = frozenset[str] | None
"""Names the groups who may know something, or who see it; empty: the person alone; None: everybody."""

EVERYBODY: Final[Audience] = None
THE_PERSON: Final[Audience] = frozenset()


KEPT_LABELS: Final = 64
"""Bounds the labels of which it is kept how they are written: each call of a tool that is recorded has one."""


def audience_of(secrecy: Secrecy) -> Audience:
    """Reads what a configuration says."""
    if secrecy == "public":
        return EVERYBODY
    return THE_PERSON if secrecy == "private" else frozenset(secrecy)


def common(one: Audience, other: Audience) -> Audience:
    """Returns who may know what is made of two things: whoever may know both."""
    if one is None:
        return other
    return one if other is None else one & other


def may_see(who: Audience, of: Audience) -> bool:
    """Says whether all of `who` may know what `of` may."""
    return of is None or (who is not None and who <= of)


def secrecy_of(audience: Audience) -> str | list[str]:
    """Returns an audience as a configuration has it."""
    return "public" if audience is None else sorted(audience) or "private"


class Label(NamedTuple):
    """Says what is known of data.

    Args:
        secrecy: Who may know it.
        trusted: Whether no stranger has written any of it.
    """

    secrecy: Audience = EVERYBODY
    trusted: bool = True

    def __or__(self, other: Label) -> Label:
        """Joins two labels: of what is made of both."""
        if other.within(self):
            return self
        return Label(common(self.secrecy, other.secrecy), self.trusted and other.trusted)

    def within(self, other: Label) -> bool:
        """Says whether the other label allows no more than this one."""
        return may_see(other.secrecy, self.secrecy) and (self.trusted or not other.trusted)

    @lru_cache(KEPT_LABELS)  # noqa: B019 - labels are small
    def pack(self) -> str:
        """Encodes the label for a store."""
        return json.dumps([secrecy_of(self.secrecy), "trusted" if self.trusted else "untrusted"])

    @classmethod
    def unpack(cls, text: str) -> Label:
        """Decodes what `pack` has made; what cannot be read is the strictest label."""
        try:
            secrecy, trust = json.loads(text)
            return cls(audience_of(secrecy), trust == "trusted")
        except (ValueError, TypeError):
            return STRICTEST

    def __str__(self) -> str:
        secrecy = secrecy_of(self.secrecy)
        shown = secrecy if isinstance(secrecy, str) else ", ".join(secrecy)
        return f"{shown} and {'trusted' if self.trusted else 'untrusted'}"


NOTHING: Final = Label()
"""Labels what a run knows that has read nothing."""

STRICTEST: Final = Label(THE_PERSON, trusted=False)
"""Labels what nobody has said anything about."""


@dataclass(frozen=True, slots=True)
class Stated:
    """Holds what one source says of a tool, or a server of one result; None where it says nothing.

    Args:
        secrecy: An audience, alone in a tuple: None is one.
        trusted: As of a label.
    """

    secrecy: tuple[Audience] | None = None
    trusted: bool | None = None

    def or_else(self, other: Stated) -> Stated:
        """Returns what is said here, and for the rest what another source says."""
        return Stated(
            other.secrecy if self.secrecy is None else self.secrecy,
            other.trusted if self.trusted is None else self.trusted,
        )

    def label(self, otherwise: Label) -> Label:
        """Returns the label, with the fields of another one for what is not said."""
        return Label(
            otherwise.secrecy if self.secrecy is None else self.secrecy[0],
            otherwise.trusted if self.trusted is None else self.trusted,
        )


UNSAID: Final = Stated()


def stated_by_server(meta: Mapping[str, Any]) -> Stated:
    """Reads `_meta.ifc` as GitHub's server writes it: `{"integrity": "trusted", "confidentiality": ["public"]}`, where
    other names are readers. What cannot be read counts as the strictest."""
    if "ifc" not in meta:
        return UNSAID
    found: object = meta["ifc"]
    said: Mapping[str, Any] = found if is_object(found) else {}
    readers: object = said.get("confidentiality")
    names = readers if is_array(readers) else [readers]
    if "public" in names:
        audience = EVERYBODY
    elif is_array(readers) and all(isinstance(name, str) for name in names):
        audience = frozenset(f"user:{name}" for name in names if name != "private")
    else:
        audience = THE_PERSON
    return Stated((audience,), said.get("integrity") == "trusted")
