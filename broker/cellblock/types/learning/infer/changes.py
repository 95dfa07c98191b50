"""Says what is different between two versions of a shape, in plain sentences for a log and for `schemas diff`."""

from __future__ import annotations

from typing import Final

from cellblock.types.learning.infer.merge import collapsed
from cellblock.types.learning.infer.shape import Shape

MAX_CHANGES: Final = 20
"""Bounds the sentences about one change; a log line is read by people."""


def changes(before: Shape, after: Shape) -> list[str]:
    """Gives one sentence for each place that differs, by its path; `[]` when the shapes are equal."""
    found: list[str] = []
    _compare("", before, after, found)
    if not found and before != after:
        found.append("/: the kinds of objects differ")
    return found[:MAX_CHANGES]


def kinds(shape: Shape) -> str:
    """Gives the kinds of values of a shape, as text."""
    names = [
        name
        for name, there in (
            ("anything", shape.anything),
            ("object", shape.objects is not None),
            ("array", shape.items is not None),
            ("string", shape.formats is not None),
            (shape.number, bool(shape.number)),
            ("boolean", shape.boolean),
            ("null", shape.null),
        )
        if there
    ]
    return " or ".join(names) or "nothing"


def _compare(path: str, before: Shape, after: Shape, found: list[str]) -> None:
    if before == after or len(found) >= MAX_CHANGES:
        return
    place = path or "/"
    if kinds(before) != kinds(after):
        found.append(f"{place}: was {kinds(before)}, is {kinds(after)}")
    elif before.formats != after.formats:
        was, now = (", ".join(sorted(one.formats or ())) or "any" for one in (before, after))
        found.append(f"{place}: the format was {was}, is {now}")
    if before.items is not None and after.items is not None:
        _compare(f"{path}/*", before.items, after.items, found)
    if before.objects is None or after.objects is None:
        return
    old, new = collapsed(before.objects), collapsed(after.objects)
    if new.is_map and not old.is_map:
        found.append(f"{place}: has too many names for fields, is a map")
        return
    for name in [*old.properties, *(name for name in new.properties if name not in old.properties)]:
        here = f"{path}/{name}"
        was, now = old.properties.get(name), new.properties.get(name)
        if was is None or now is None:
            found.append(f"{here}: {'new' if was is None else 'gone'}")
            continue
        if was.required != now.required:
            found.append(f"{here}: {'always there' if now.required else 'optional'}")
        _compare(here, was.shape, now.shape, found)
    _compare(f"{path}/(other names)", old.other, new.other, found)
