"""Finds the imports of a script and points them at the modules of its run.

Only the text of the specifiers is replaced or wrapped, so that everything else stays what and where the agent wrote
it, and positions that the sandbox reports are mapped back over those few edits.

A script is sent as JavaScript, with blanks for types if it is TypeScript. Only one with more than types (an enum, say)
is sent as TypeScript, for Deno to compile: for that Deno insists on writing to its cache, which no worker has, and
loses 150 ms in retries.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from cellblock.script import imports, lines as script_lines
from cellblock.script.conventions import Entry
from cellblock.script.imports import JAVASCRIPT, TYPESCRIPT, Imports, Span, find_imports
from cellblock.script.lines import SCRIPT_NAME
from cellblock.script.unawaited import Unawaited

IMPORT_FUNCTION: Final = "__codemode_import__"

_IMPORT: Final = re.compile(rb"import[\s\xa0]*\([\s]*$")
"""Fits what stands before the first argument of an `import(…)`, unless there is a comment in between."""

_SPACES: Final = re.compile(rb"\s*")

_KEYWORD: Final = "import"

_IMPORT_ROOM: Final = 64
"""Bounds the bytes in which the opening of an `import(…)` is looked for."""

_OPENINGS: Final = {
    "function": "export default ",
    "call": "export default ",
    "return": "export default async () => {",
}


@dataclass(frozen=True, slots=True)
class StaticImport:
    """Describes one `import … from` or `export … from`; line and column as in `script_lines`."""

    specifier: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class _Edit:
    """Says where a replacement begins and ends in a line of the text that is sent, where it began in the agent's, and
    how far what follows it has moved."""

    column: int
    start: int
    end: int
    shift: int


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Stands for the bytes from `start` to `end`."""

    start: int
    end: int
    text: str


@dataclass(slots=True)
class Script:
    """Holds a script whose imports point at `data:` URLs.

    `static` are its static imports; `dynamic` are the literal specifiers of `import(…)`, and `computed` says
    whether there is an `import(…)` of anything else. `media_type` is that of `text`, and `typescript` says what the
    agent wrote. `entry` and `fix` are as in `Imports`, and so is `unawaited`, with
    places.
    """

    text: str
    media_type: str = JAVASCRIPT
    typescript: bool = False
    entry_place: str | None = None
    static: list[StaticImport] = field(default_factory=list[StaticImport])
    dynamic: list[str] = field(default_factory=list[str])
    computed: bool = False
    entry: Entry | None = None
    fix: str | None = None
    unawaited: list[tuple[str, Unawaited]] = field(default_factory=list[tuple[str, Unawaited]])
    fits_context: bool = True
    """Says whether the script can run in a V8 context: it is JavaScript, and each `import(…)` is the sandbox's own, by
    `import_name`."""
    import_name: str = _KEYWORD
    name: str = SCRIPT_NAME
    code: str = ""
    """Holds the agent's own source."""
    untyped: str | None = None
    """Holds that with blanks for its types, where it is JavaScript then."""
    _edits: dict[int, list[_Edit]] = field(default_factory=dict[int, list[_Edit]])
    _compiled: script_lines.CompilerPlaces | None = None

    @property
    def specifiers(self) -> list[str]:
        """Lists the specifiers of the script's imports, without those that it computes."""
        return [*(found.specifier for found in self.static), *self.dynamic]

    def has_namespace(self, name: str) -> bool:
        """Says whether the script calls a module so, as in `import * as name` or `name = await import(…)`."""
        call = rf"(?:import|{re.escape(self.import_name)})(?![\w$])"
        made = rf"\*\s*as\s+{re.escape(name)}(?![\w$])|(?<![\w$.]){re.escape(name)}\s*=\s*await\s+{call}"
        return re.search(made, self.text) is not None

    def place(self, line: int, column: int) -> str:
        """Returns `NAME:LINE:COLUMN` in the agent's own source, of a position that the engine gives."""
        if self.media_type == TYPESCRIPT:
            if self._compiled is None:
                self._compiled = script_lines.CompilerPlaces(self._loaded())
            line, column = self._compiled.place(line, column)
        return f"{self.name}:{line}:{self.original_column(line, column)}"

    def parsed_place(self, line: int, column: int) -> str:
        """Finds, as `place` does, the position of a syntax error of Deno's parser."""
        line, column = script_lines.parsed_place(self._loaded(), line, column)
        return f"{self.name}:{line}:{self.original_column(line, column)}"

    def _loaded(self) -> str:
        return self.text.removeprefix(script_lines.BYTE_ORDER_MARK)

    def original_column(self, line: int, column: int) -> int:
        """Gives the column in the agent's own source of a position in `text`, both as in `script_lines`."""
        edits = self._edits.get(line, [])
        at = bisect_right(edits, column, key=lambda edit: edit.start) - 1
        if at < 0:
            return column
        return edits[at].column if column < edits[at].end else column - edits[at].shift


def encoded(code: str) -> bytes:
    """Gives a script's text as what is parsed and sent; lone surrogates have no UTF-8 and become question marks."""
    return code.encode("utf-8", "replace")


def prepare(
    code: str,
    resolve: Callable[[str], str | None],
    import_url: str,
    found: Imports | None = None,
    *,
    conventions: bool = True,
    journaled: bool = False,
    own_import: bool = False,
    name: str = SCRIPT_NAME,
) -> Script:
    """Rewrites a script's imports, and exports what it gives as its result by a convention.

    Static specifiers that `resolve` knows are replaced by its answer; others stay, for the caller to refuse.
    In every `import(x)` the `x` is wrapped into a call of the sandbox's own function, which knows the same
    specifiers. The expression stays an `import`, with the engine's own syntax errors, order of evaluation and
    promise.

    Args:
        code: The agent's source.
        resolve: From a specifier to a module URL, or None.
        import_url: The module that exports `importable`.
        found: What `find_imports` has found in it; None to parse here.
        conventions: Whether it may give its result otherwise than by assigning it.
        journaled: Whether the end of each `import(x)` is to come in its turn: then it is an argument of another
            function of the sandbox.
        own_import: Whether `import(…)` becomes a call of the sandbox's own function, of a name of the same length: in a
            V8 context that was made for the run, the engine's own finds nothing.
        name: What places in it are told by.

    Raises:
        TooComplex: As `find_imports` does, within `PARSE_BOUND_SECONDS`.
    """
    source = encoded(code)
    if found is None:
        found = find_imports(source, imports.PARSE_BOUND_SECONDS, imports.BLANK_BOUND_SECONDS)
    script = Script(
        source.decode(), found.media_type, found.media_type == TYPESCRIPT, fix=found.fix, name=name, code=code
    )
    entry = script.entry = found.entry if conventions else None
    if found.javascript is not None:
        script.text, script.media_type = found.javascript, JAVASCRIPT
        script.untyped = found.javascript
        source = encoded(found.javascript)
    script.fits_context = script.media_type == JAVASCRIPT
    if script.text.startswith(script_lines.BYTE_ORDER_MARK):
        # Deno takes it off.
        script._edits[1] = [_Edit(1, 1, 1, -1)]  # pyright: ignore[reportPrivateUsage]
    edits: list[_Replacement] = []
    if entry is not None and entry.kind != "export":
        edits.append(_Replacement(entry.at, entry.at, _OPENINGS[entry.kind]))
    if not found.statics and not found.dynamics and not edits and not found.unawaited:
        return script
    wrapped = found.calls if journaled else ()
    import_name = _fresh_import(code) if own_import and found.dynamics else None
    keywords = _keywords(source, found.dynamics) if import_name is not None else []
    offsets = [offset for node in (*found.dynamics, *wrapped) for offset in (node.start, node.end)]
    offsets += keywords
    offsets += [part.start for part in (*found.statics, *found.unawaited, *edits)]
    places = script_lines.places(script_lines.with_plain_ends(source), offsets)
    if entry is not None and entry.kind == "call":
        line, column = places[entry.at]
        script.entry_place = f"{name}:{line}:{column}"
    for call in found.unawaited:
        line, column = places[call.start]
        script.unawaited.append((f"{name}:{line}:{column}", call))
    for node in found.statics:
        specifier = node.text or ""
        script.static.append(StaticImport(specifier, *places[node.start]))
        url = resolve(specifier)
        if url is not None:
            edits.append(_Replacement(node.start, node.end, f'"{url}"'))
    script.computed = found.computed
    script.dynamic = [node.constant for node in found.dynamics if node.constant is not None]
    function, in_turn = _fresh_names(code)
    script.fits_context &= len(keywords) == len(found.dynamics) or not own_import
    if import_name is not None:
        script.import_name = import_name
        length = len(_KEYWORD)
        edits += [_Replacement(start, start + length, import_name) for start in keywords]
    for node in found.dynamics:
        edits.append(_Replacement(node.start, node.start, f"{function}("))
        edits.append(_Replacement(node.end, node.end, ")"))
    for node in wrapped:
        edits.append(_Replacement(node.start, node.start, f"{in_turn}("))
        edits.append(_Replacement(node.end, node.end, ")"))
    script.text = _apply(source, edits, places, script)
    if entry is not None and entry.kind == "return":
        script.text += "\n};"
    if script.dynamic or script.computed:
        # Appended, so that no line moves; an import is hoisted wherever it stands.
        names = f"importable as {function}" + (f", inTurn as {in_turn}" if journaled else "")
        names += f", load as {script.import_name}" if keywords else ""
        script.text += f'\nimport {{ {names} }} from "{import_url}";\n'
    return script


def _apply(
    source: bytes, edits: list[_Replacement], places: dict[int, tuple[int, int]], script: Script
) -> str:
    pieces: list[bytes] = []
    at = 0
    for edit in sorted(edits, key=lambda edit: edit.start):
        line, column = places[edit.start]
        before = script._edits.setdefault(line, [])  # pyright: ignore[reportPrivateUsage]
        shift = before[-1].shift if before else 0
        end = column + shift + len(edit.text)
        old = script_lines.units(source[edit.start : edit.end].decode("utf-8", "replace"))
        told = column
        if edit.text == script.import_name:
            # The engine tells the place of an `import(…)` by its argument, that of a call by the function.
            told += len(source[edit.start : _argument(source, edit.end)].decode("utf-8", "replace"))
        before.append(_Edit(told, column + shift, end, shift + len(edit.text) - old))
        pieces += [source[at : edit.start], edit.text.encode()]
        at = edit.end
    pieces.append(source[at:])
    return b"".join(pieces).decode()


def _argument(source: bytes, keyword_end: int) -> int:
    """Finds where the first argument of an `import(…)` begins, if that is in the same line; else its bracket."""
    bracket = source.index(b"(", keyword_end) + 1
    found = _SPACES.match(source, bracket)
    return bracket if found is None or source.count(b"\n", keyword_end, found.end()) else found.end()


def _keywords(source: bytes, dynamics: Sequence[Span]) -> list[int]:
    """Returns the place of each `import` whose first argument is one of some nodes; those not found are left out."""
    found: list[int] = []
    for node in dynamics:
        before = max(0, node.start - _IMPORT_ROOM)
        if (match := _IMPORT.search(source[before : node.start])) is not None:
            found.append(before + match.start())
    return found


def _fresh_import(code: str) -> str | None:
    """Gives a name as long as `import` that the script has not; None where it has them all."""
    return next((name for number in range(1000) if (name := f"$im{number:03}") not in code), None)


def _fresh_names(code: str) -> tuple[str, str]:
    """Gives two names that the script does not use."""
    taken = set(re.findall(rf"{IMPORT_FUNCTION}\d*", code))
    names = (f"{IMPORT_FUNCTION}{number or ''}" for number in (0, *range(2, len(taken) + 4)))
    free = [name for name in names if name not in taken]
    return free[0], free[1]
