"""Prints shapes as TypeScript text. The same shapes always give the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Set

from cellblock.types.typescript.limits import MAX_TEXT
from cellblock.types.typescript.shapes import (
    INHERITED,
    OPEN_OBJECT,
    Array,
    Definitions,
    Keyword,
    Literal,
    Never,
    Object,
    Property,
    Ref,
    Shape,
    Union,
    Unknown,
    inline,
    parts_of,
    union,
)
from cellblock.types.typescript.text import property_key, short_comment, string_literal

_LINE = 88
"""Bounds the characters of an object or union that still stands on one line."""

_MAX_NESTING = 48
"""Bounds the definitions written out inside each other; deeper ones get a name."""

_INLINE = 60
"""Bounds the characters of a shared definition that is written out at each use instead of named."""


class TooLong(Exception):
    """Tells that the text of one type would be over `MAX_TEXT` characters."""


class Printer:
    """Prints the shapes of one text.

    Args:
        definitions: What a `Ref` means.
        recursive: Those that are within what they mean.
        taken: The type names in use; new aliases are added to it.
        reading: Whether agents read the text: comments are short, and no property is described twice in a row.
    """

    def __init__(
        self, definitions: Definitions, recursive: Set[Ref], taken: set[str], *, reading: bool = False
    ) -> None:
        self._definitions = definitions
        self._recursive = recursive
        self._taken = taken
        self._reading = reading
        self._described: dict[str, tuple[str, ...]] = {}
        self._inherited_declared = False
        self._uses = Counter[int]()
        # By keys of references, and of texts that are no definition.
        self._names: dict[Hashable, str] = {}
        self._bodies: dict[Hashable, str] = {}
        self._aliases: list[Hashable] = []
        self._numbers: dict[str, int] = {}
        self._length = 0
        self._nesting = 0

    def print(self, shape: Shape) -> tuple[str, list[str]]:
        """Gives the type expression of one of the counted shapes, and the alias declarations that it needs and none
        before needed, in order of first use.

        Raises:
            TooLong: the text would be over `MAX_TEXT` characters.
        """
        self._length = self._nesting = 0
        self._aliases = []
        aliases: list[str] = []
        try:
            text = self._text(shape)
            # Printing an alias may need further aliases: the list grows while it is read.
            for key in self._aliases:
                if isinstance(key, int) and key not in self._bodies:
                    self._bodies[key] = self._text(self._definitions[key])
                aliases.append(f"type {self._names[key]} = {self._bodies[key]};")
        except TooLong:
            # Later texts cannot refer to what is not to be read.
            for held in (self._names, self._bodies, self._described):
                held.clear()
            raise
        return text, aliases

    def _spent(self, text: str) -> str:
        self._length += len(text)
        if self._length > MAX_TEXT:
            raise TooLong
        return text

    def count(self, root: Shape) -> None:
        """Counts the uses of each definition, without recursion of its own; before any shape is printed."""
        stack = [root]
        while stack:
            shape = stack.pop()
            if isinstance(shape, Ref):
                self._uses[shape.key] += 1
                if self._uses[shape.key] == 1:
                    stack.append(self._definitions[shape.key])
            elif isinstance(shape, Object):
                self._inherited_declared |= any(one.key in INHERITED for one in shape.properties)
            stack.extend(parts_of(shape))

    def _text(self, shape: Shape) -> str:
        match shape:
            case Ref():
                return self._ref(shape)
            case Unknown():
                return "unknown"
            case Never():
                return "never"
            case Keyword():
                return shape.word
            case Literal():
                return self._spent(shape.text)
            case Union():
                return self._union(shape)
            case Array():
                return self._array(shape)
            case Object():
                return self._object(shape)

    def _ref(self, shape: Ref) -> str:
        key = shape.key
        if key in self._names:
            return self._names[key]
        if shape not in self._recursive and self._nesting < _MAX_NESTING:
            body = self._bodies.get(key)
            if body is None:
                self._nesting += 1
                body = self._bodies[key] = self._text(self._definitions[key])
                self._nesting -= 1
            if self._uses[key] <= 1 or len(body) <= _INLINE:
                return body
        return self._name(key, shape.name_hint)

    def _name(self, key: Hashable, hint: str) -> str:
        base = hint or "Shape"
        # Types of very many tools may be called alike: from the last number on.
        name, number = base, self._numbers.get(base, 2)
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._numbers[base] = number
        self._taken.add(name)
        self._names[key] = name
        self._aliases.append(key)
        return name

    def _array(self, shape: Array) -> str:
        if not shape.prefix:
            return "[]" if shape.rest is None else self._list_of(shape.rest)
        parts = [
            self._text(item) if at < shape.required else f"{_grouped(self._text(item))}?"
            for at, item in enumerate(shape.prefix)
        ]
        if shape.rest is not None:
            parts.append(f"...{self._list_of(shape.rest)}")
        line = f"[{', '.join(parts)}]"
        if len(line) <= _LINE and "\n" not in line:
            return line
        return "[\n" + "".join(f"  {_indented(part)},\n" for part in parts) + "]"

    def _list_of(self, shape: Shape) -> str:
        text = self._text(shape)
        return f"Array<{text}>" if "| " in text or "& " in text or "\n" in text else f"{text}[]"

    def _union(self, shape: Union) -> str:
        texts: list[str] = []
        described: set[tuple[str, tuple[str, ...]]] = set()
        for member in shape.members:
            if isinstance(member, Object):
                # Alternatives of one object repeat its properties; what was said of one is not said again.
                texts.append(self._object(member, described))
                described.update((one.key, one.doc) for one in member.properties)
            else:
                texts.append(self._text(member))
        return _joined(texts)

    def _object(self, shape: Object, described: Set[tuple[str, tuple[str, ...]]] = frozenset()) -> str:
        if shape == OPEN_OBJECT and self._reading:
            return "object"
        inherited = ""
        if not shape.properties and shape.rest is None:
            return "{}" if self._reading else "{ [key: string]: never }"
        members = [
            ("" if (one.key, one.doc) in described else self._doc(one), self._property(one))
            for one in shape.properties
        ]
        if shape.rest is not None:
            signature, inherited = self._index(shape, shape.rest)
            members.append(("", signature))
        line = "{ " + "; ".join(text for _, text in members) + " }"
        if not any(doc for doc, _ in members) and "\n" not in line and len(line) <= _LINE:
            return line + inherited
        body = "".join(f"{doc}  {_indented(text)};\n" for doc, text in members)
        return "{\n" + body + "}" + inherited

    def _doc(self, one: Property) -> str:
        prose, facts = one.doc[: one.prose], one.doc[one.prose :]
        if not self._reading:
            return short_comment(prose, facts, "  ")
        shape = self._definitions[one.shape.key] if isinstance(one.shape, Ref) else one.shape
        if isinstance(shape, Array):
            # A tuple says it itself.
            facts = [fact for fact in facts if fact != f"@minItems {shape.required}"]
        is_said = self._described.get(one.key) == prose
        if prose:
            self._described[one.key] = prose
        return short_comment(() if is_said else prose, facts, "  ")

    def _property(self, one: Property) -> str:
        key, text = self._spent(property_key(one.key)), self._text(one.shape)
        if one.required:
            return f"{key}: {text}"
        return f"{key}?: {text if self._reading else _joined([text, *_inherited([one])])}"

    def _index(self, shape: Object, rest: Shape) -> tuple[str, str]:
        """Prints an index signature, and what it holds for inherited keys, as a further member of an intersection."""
        every = union([rest, *(one.shape for one in shape.covered)])
        text, member = self._text(every), ""
        declared = {one.key for one in shape.properties}
        names = [string_literal(key) for key in INHERITED if key not in declared and not self._reading]
        # A sibling in a union that declares such a key would be preferred for every object that has it. All keys stand
        # together or none: in an intersection, TypeScript lets what `Object` declares win over a signature.
        if names and (self._inherited_declared or any(map(_is_sensitive, inline(every)))):
            if len(text) > _INLINE:
                key = ("values of", id(shape))
                self._bodies[key] = text
                text = self._names.get(key) or self._name(key, "Value")
            member = f" & {{ [K in {' | '.join(names)}]?: {_joined([text, 'Object[K]'])} }}"
        texts = [text, *_inherited(shape.covered)]
        if any(not one.required for one in shape.covered):
            texts.append("undefined")
        return f"[key: string]: {_joined(texts)}", member


def _inherited(properties: Iterable[Property]) -> list[str]:
    return [f'Object["{one.key}"]' for one in properties if not one.required and one.key in INHERITED]


def _joined(texts: Iterable[str]) -> str:
    """Gives a union of type texts without repeats; long ones break between members."""
    members = [text for text in dict.fromkeys(texts) if text != "never"]
    if "unknown" in members:
        return "unknown"
    text, width = "", 0
    for member in members:
        first_line = member.partition("\n")[0]
        if not text:
            text = member
        elif width + len(first_line) > _LINE:
            text, width = f"{text}\n  | {member}", 0
        else:
            text = f"{text} | {member}"
        width = len(member) - member.rfind("\n") if "\n" in member else width + len(member) + 3
    return text or "never"


def _grouped(text: str) -> str:
    return f"({text})" if "| " in text or "& " in text else text


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


def _is_sensitive(shape: Shape) -> bool:
    """Says whether a literal of this shape is typed by what is expected of it, as literal types and tuples are; what a
    reference means may be."""
    return isinstance(shape, Literal | Ref) or (
        isinstance(shape, Array) and (bool(shape.prefix) or shape.rest is None)
    )
