"""Keeps a bounded number of things: those that were set last, or what was made of the objects used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Concatenate, Generic, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class Newest(OrderedDict[_K, _V]):
    """Keeps the values that were set last; one more than `maximum` drops the one that was set before all others."""

    def __init__(self, maximum: int) -> None:
        super().__init__()
        self._maximum = maximum

    def __setitem__(self, key: _K, value: _V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._maximum:
            self.popitem(last=False)


class KeptByIdentity(Generic[_K, _V]):
    """Keeps a value for each of the objects used last, by their identity.

    Args:
        make: Makes the value of an object; gets it, and what else `of` is given.
        maximum: Objects kept; the one unused for longest goes first.
    """

    def __init__(self, make: Callable[Concatenate[_K, ...], _V], maximum: int) -> None:
        self._make = make
        self._held = Newest[int, tuple[_K, _V]](maximum)

    def get_or_make(self, item: _K, *about: object) -> _V:
        """Gives what belongs to this very object; threads may ask at the same time."""
        # An entry holds its object: a freed object's id would be given to another.
        held = self._held.pop(id(item), None) or (item, self._make(item, *about))
        self._held[id(item)] = held
        return held[1]
