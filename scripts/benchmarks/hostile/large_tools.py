"""Python tools that give much, each with another return annotation; what they give is made when they are imported."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from typing_extensions import TypedDict

from cellblock import tool

ROWS: Final = 60_000
"""Make about 8 MB of JSON, and half a million values."""


class Row(BaseModel):
    """One of many."""

    number: int
    name: str
    tags: list[str]
    score: float
    kept: bool


class Page(BaseModel):
    """Holds them all."""

    total: int
    rows: list[Row]


class PlainRow(TypedDict):
    """The same without a class."""

    number: int
    name: str
    tags: list[str]
    score: float
    kept: bool


class PlainPage(TypedDict):
    """Holds them all."""

    total: int
    rows: list[PlainRow]


def _row(number: int) -> PlainRow:
    return {
        "number": number,
        "name": f"the row with the number {number}",
        "tags": ["one", "two"],
        "score": number / 7,
        "kept": True,
    }


PLAIN: Final = PlainPage(total=ROWS, rows=[_row(number) for number in range(ROWS)])
MODELS: Final = Page(total=ROWS, rows=[Row(**row) for row in PLAIN["rows"]])


@tool()
def untyped() -> dict[str, Any]:
    """Gives much of any kind."""
    return {**PLAIN}


@tool()
def typed() -> PlainPage:
    """Gives much, and says of what."""
    return PLAIN


@tool()
def models() -> Page:
    """Gives many instances."""
    return MODELS
