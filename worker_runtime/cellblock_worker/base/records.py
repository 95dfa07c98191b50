"""Records are read from what others have written: each field by its name, of its type, within its bounds, and no other.

The broker has Pydantic for that. A worker host has not: its import would be half of what a host's start takes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Self,
    dataclass_transform,
    get_args,
    get_origin,
)

Check = Callable[[Any], bool]

_ABSENT: Final = object()


class Within(NamedTuple):
    """Bounds a number, or the length of a text or of a list; both bounds are allowed."""

    least: int
    most: int = 2**53 - 1


class Like(NamedTuple):
    """Says which regular expression a whole text must match."""

    pattern: str


class BadRecord(ValueError):
    """Tells that a value cannot be made a record of the asked kind. The text names the field and what it should be,
    and repeats no value."""


class Field(NamedTuple):
    """A field is what a record knows of one of its values."""

    check: Check
    wanted: str
    default: Any


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """A record, of which all kinds derive, declares its fields as a dataclass does.

    A field is an int, a str or a bool, exactly; one of some texts; a list of such; another record; each may be bounded
    (`Annotated`) or also None. What holds a record cannot change it.
    """

    fields: ClassVar[dict[str, Field]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = inspect.get_annotations(cls, eval_str=True)
        cls.fields = cls.fields | {
            name: Field(*_check_of(kind), getattr(cls, name, _ABSENT))
            for name, kind in own.items()
            if get_origin(kind) is not ClassVar
        }

    def __init__(self, **values: Any) -> None:
        self._take(values)

    @classmethod
    def read(cls, values: Mapping[Any, Any]) -> Self:
        """Returns the record that a dictionary of whatever origin holds. Raises BadRecord."""
        made = cls.__new__(cls)
        made._take(values)
        return made

    def replace(self, **changes: Any) -> Self:
        """Returns a copy of the record with other values in some fields. Raises BadRecord."""
        return self.read({**vars(self), **changes})

    def _take(self, values: Mapping[Any, Any]) -> None:
        mine, known = vars(self), 0
        for name, (check, wanted, default) in self.fields.items():
            value = values.get(name, _ABSENT)
            if value is not _ABSENT:
                if not check(value):
                    raise BadRecord(f"{name}: should be {wanted}")
                known += 1
            elif default is _ABSENT:
                raise BadRecord(f"{name}: is missing")
            else:
                # Nobody's list is another's.
                value = default.copy() if _is_list(default) else default
            mine[name] = value
        if known != len(values):
            raise BadRecord("has a field that there is not")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
        )


def _is_list(value: object) -> bool:
    return type(value) is list


def _check_of(kind: Any) -> tuple[Check, str]:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _bounded(*parts)
    if origin is Literal:
        return (lambda value: type(value) is str and value in parts), f"one of {', '.join(parts)}"
    if origin is not None:
        some, none = parts
        assert none is type(None), kind
        check, wanted = _check_of(some)
        return (lambda value: value is None or check(value)), f"{wanted}, or nothing"
    return (lambda value: type(value) is kind), f"of the type {kind.__name__}"


def _bounded(kind: Any, bound: Within | Like) -> tuple[Check, str]:
    if isinstance(bound, Like):
        matched = re.compile(bound.pattern).fullmatch
        return (lambda value: type(value) is str and matched(value) is not None), f"like {bound.pattern}"
    least, most = bound
    if kind is int:
        return (lambda value: type(value) is int and least <= value <= most), f"from {least} to {most}"
    if kind is str:
        return (
            lambda value: type(value) is str and least <= len(value) <= most
        ), f"a text of {least} to {most} characters"
    [item] = get_args(kind)
    check, wanted = _check_of(item)
    return (
        lambda value: _is_list(value) and least <= len(value) <= most and all(map(check, value))
    ), f"a list of {least} to {most}, each {wanted}"
