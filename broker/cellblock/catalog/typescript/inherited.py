"""Finds which index signatures must say again what they hold for the keys that every object inherits.

For a key such as `constructor`, TypeScript takes what `Object` declares before it takes an index signature. It then
types a literal given there without the signature's help, so that `"a"` is only a `string` and `[1]` only an array; and
it may tell the members of a union apart by the inherited function.
"""

from __future__ import annotations

from collections.abc import Iterable

from cellblock.catalog.typescript.shapes import (
    INHERITED,
    Array,
    Definitions,
    Index,
    Literal,
    Never,
    Object,
    Ref,
    Shape,
    Union,
)


class Inherited:
    """Knows what one schema's shapes need of the inherited keys.

    Args:
        definitions: What a `Ref` means.
        root: The shape that is to be printed.
    """

    def __init__(self, definitions: Definitions, root: Shape) -> None:
        declared, sensitive = False, set[tuple[object, ...]]()
        used_by: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
        here: tuple[object, ...]
        for here, shape in [((), root), *((key, one.shape) for key, one in definitions.items())]:
            for part in inline(shape):
                if isinstance(part, Ref):
                    used_by.setdefault(part.key, set()).add(here)
                elif _is_sensitive(part):
                    sensitive.add(here)
                elif isinstance(part, Object):
                    declared = declared or any(one.key in INHERITED for one in part.properties)
        waiting = list(sensitive)
        while waiting:
            new = used_by.get(waiting.pop(), set()) - sensitive
            sensitive |= new
            waiting.extend(new)
        self._declared, self._sensitive = declared, sensitive

    def keys(self, index: Index, shape: Shape) -> tuple[str, ...]:
        """Gives the inherited keys that stand beside `index`, whose values are of `shape`."""
        if not index.inherited or isinstance(shape, Never):
            return ()
        # A sibling in a union that declares such a key would be preferred for every object that has it. All keys stand
        # together or none: in an intersection, TypeScript lets what `Object` declares win over a signature.
        needed = self._declared or any(map(self._needs_help, inline(shape)))
        return index.inherited if needed else ()

    def _needs_help(self, shape: Shape) -> bool:
        """Says whether a literal of this shape is typed by what is expected of it: literal types and tuples are."""
        return _is_sensitive(shape) or (isinstance(shape, Ref) and shape.key in self._sensitive)


def parts_of(shape: Shape) -> Iterable[Shape]:
    """Gives the shapes directly inside one; what a `Ref` means is not inside it."""
    if isinstance(shape, Union):
        return shape.members
    if isinstance(shape, Array):
        return shape.prefix if shape.rest is None else (*shape.prefix, shape.rest)
    if isinstance(shape, Object):
        inside = [one.shape for one in shape.properties]
        for index in shape.indexes:
            inside.extend((index.shape, *(one.shape for one in index.also)))
        return inside
    return ()


def inline(root: Shape) -> Iterable[Shape]:
    """Gives the shape and all inside it; what a `Ref` means is not inside it."""
    stack = [root]
    while stack:
        shape = stack.pop()
        yield shape
        stack.extend(parts_of(shape))


def _is_sensitive(shape: Shape) -> bool:
    return isinstance(shape, Literal) or (
        isinstance(shape, Array) and (bool(shape.prefix) or shape.rest is None)
    )
