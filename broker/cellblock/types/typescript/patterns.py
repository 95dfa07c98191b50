"""Reads regular expressions of `patternProperties` that a template literal type can say.

Upstream patterns are hostile: they are read by a small linear reader here and never given to a regex engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from cellblock.types.typescript.text import template_part

_ANY = ".*"
_SOME = ".+"
_TOKEN = re.compile(r"\.\*|\.\+|\\[^A-Za-z0-9]|[^\\.*+?()\[\]{}|^$]")
_QUANTIFIER = re.compile(r"[*+?{]")
_LINE_BREAK = re.compile("[\n\r\u2028\u2029]")
_MAX_PATTERN = 200
_GAP = "\ue000"
"""Stands for any text in a template that is tested against another; a private character no pattern needs."""


@dataclass(frozen=True, slots=True)
class KeyPattern:
    """A key pattern is made of literal text, `.*` and `.+`, anchored or not.

    `parts` are the literal texts between the gaps; `some[i]` says the gap behind `parts[i]` is not empty.
    Gaps beyond the written pattern (a missing anchor) match line breaks; a written `.` does not.
    """

    parts: tuple[str, ...]
    some: tuple[bool, ...]
    dots: bool

    @property
    def exact_key(self) -> str | None:
        """Gives the only key that matches, where there is only one."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def template(self) -> str:
        """Gives the template literal type, without a leading gap test: `` `x-${string}` ``."""
        return "`" + "${string}".join(template_part(part) for part in self.parts) + "`"

    @property
    def is_exact(self) -> bool:
        """Says whether the template matches exactly the keys that the pattern matches."""
        return not self.dots and not any(self.some)

    @property
    def matches_every_key(self) -> bool:
        """Says whether no key at all fails the pattern."""
        return self.is_exact and not any(self.parts)

    def certain_for(self, other: KeyPattern | None) -> bool:
        """Says whether every key that `other` matches matches this pattern too; None is one nobody could read."""
        if other is None or not self.is_exact or self.exact_key is not None:
            return self.matches_every_key
        return self.template_covers(_GAP.join(other.parts))

    def within_template(self, template: KeyPattern) -> bool:
        """Says whether each key of this pattern's template is one of another pattern's."""
        return template.template_covers(_GAP.join(self.parts))

    def matches(self, key: str) -> bool | None:
        """Says whether the key matches; None where this reader cannot tell."""
        if self.exact_key is not None:
            return key == self.exact_key
        if not self.is_exact and (any(self.some) or _LINE_BREAK.search(key)):
            return None if self.template_covers(key) else False
        return self.template_covers(key)

    def template_covers(self, key: str) -> bool:
        """Says whether a key fits a pattern's template, which a key of a pattern with dots may do without matching."""
        head, *middle, tail = self.parts
        if len(key) < len(head) + len(tail) or not key.startswith(head) or not key.endswith(tail):
            return False
        at, end = len(head), len(key) - len(tail)
        for part in middle:
            at = key.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True


@lru_cache(maxsize=512)
def read_pattern(pattern: str) -> KeyPattern | None:
    """Gives the pattern as literal text and gaps, or None when it says more than that."""
    if len(pattern) > _MAX_PATTERN:
        return None
    open_start = not pattern.startswith("^")
    body = pattern if open_start else pattern[1:]
    open_end = not (body.endswith("$") and not body.endswith("\\$"))
    body = body if open_end else body[:-1]
    # Beside a missing anchor `.*` says nothing; elsewhere it refuses line breaks.
    while open_start and body.startswith(_ANY):
        body = body[len(_ANY) :]
    while open_end and body.endswith(_ANY) and not body.endswith("\\" + _ANY):
        body = body[: -len(_ANY)]
    parts, some, dots = [""], list[bool](), False
    if open_start:
        parts.append("")
        some.append(False)
    at = 0
    while at < len(body):
        token = _TOKEN.match(body, at)
        if token is None or _QUANTIFIER.match(body, token.end()):
            return None
        at = token.end()
        if token.group() in (_ANY, _SOME):
            dots = True
            parts.append("")
            some.append(token.group() == _SOME)
        else:
            parts[-1] += token.group()[-1]
    if open_end:
        parts.append("")
        some.append(False)
    return _without_double_gaps(parts, some, dots)


def _without_double_gaps(parts: list[str], some: list[bool], dots: bool) -> KeyPattern:
    kept, gaps = [parts[0]], list[bool]()
    for part, gap in zip(parts[1:], some, strict=True):
        if gaps and not kept[-1]:
            # Two gaps in a row are one; it is not empty when either is.
            gaps[-1] = gaps[-1] or gap
            kept[-1] = part
        else:
            gaps.append(gap)
            kept.append(part)
    return KeyPattern(tuple(kept), tuple(gaps), dots)
