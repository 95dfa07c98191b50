"""Turns what a worker says of a failed script into a diagnostic in the agent's own terms, with one corrective action
(Code Mode specification, section 3.3.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from cellblock.base.errors import first_few, shorten
from cellblock.base.json import is_array, is_object
from cellblock.base.suggest import by_shared_words, did_you_mean, nearest_names
from cellblock.run.response import Diagnostic, error_diagnostic
from cellblock.script.lines import line_of
from cellblock.script.slips import FENCED, syntax_hint
from cellblock.script.source import Script
from cellblock.tools.catalog.model import Catalog, Withheld
from cellblock.tools.catalog.modules import ERROR_CLASSES, SERVERS_PREFIX
from cellblock.types.absent_globals import absent_hint, deviations, import_hint
from cellblock_worker.wire import protocol

MAX_MESSAGE_CHARS: Final = 4_000

MAX_RELATED: Final = 5
"""Bounds the errors of an AggregateError that a message tells; the sandbox sends four and how many more there
are."""

MAX_TEXT_CHARS: Final = 8 * 1024
"""Bounds the characters of each text that a worker sends of a failure; the sandbox's own cap
(`describeFailure`)."""

MAX_EXPORT_CHARS: Final = 1_000
"""Bounds the characters of the name of an export that is not there."""

MAX_HINT_CHARS: Final = 500
"""Bounds the characters of a hint and of a path, as in notices."""

MAX_NAMED: Final = 12
"""Bounds the exports that a hint names."""

THROWN_VALUE: Final = "Thrown value"
"""Names what was thrown and is no error, as the sandbox does."""

CORRECT_IT: Final = (
    "Correct what the message names, or catch the exception.",
    "Correct the script at that position, or catch the exception.",
)
"""Give hints for exceptions of which nothing is known, without a place and with one."""

MISSING: Final = (
    "It is read of what is null or missing, if only in some results: use `?.` and a default, or leave it out."
)

ALREADY_PARSED: Final = "What JSON.parse was given is a value already: use it as it is."

NO_JSON: Final = (
    "JSON has double quotes, no comma before a closing bracket, and true, false and null for Python's True, False and "
    "None. Use a text that is not meant to be JSON as it is."
)
_OF_MESSAGES: Final = (
    (re.compile(r'SyntaxError: .*"\[object Object\]" is not valid JSON'), ALREADY_PARSED),
    (
        re.compile(r'SyntaxError: .*"\[object Promise\]" is not valid JSON'),
        "What JSON.parse was given is a promise: await it first, `JSON.parse(await …)`.",
    ),
    (re.compile(r"SyntaxError: .*(?:is not valid JSON|in JSON at position )", re.DOTALL), NO_JSON),
    (re.compile(r"TypeError: Cannot read properties of (?:null|undefined) "), MISSING),
    (
        re.compile(r"RangeError: Invalid time value"),
        "What the Date is made of is missing, or no date that it can read, or no milliseconds, if only once.",
    ),
    (
        re.compile(r"ReferenceError: Cannot access '.*' before initialization"),
        "The nearest declaration of that name is not reached yet: give it another name, or move it up.",
    ),
    (
        re.compile(r"TypeError: Method .* called on incompatible receiver undefined"),
        "A method was handed on without its object: wrap it, `(value) => object.method(value)`.",
    ),
)
"""Lists hints by what the engine says, where that is certain; the first that fits counts."""

_REBUILT: Final = ("Error", "RangeError", "ReferenceError", "SyntaxError", "TypeError")
"""Holds names of errors that Deno puts in place of one without frames (`sandbox/result/failure.ts`)."""

_SCRIPT_URL: Final = re.compile(
    r"data:application/(?:javascript|typescript|script)(?:;base64,[A-Za-z0-9+/=.]*)?(?::(\d{1,9}):(\d{1,9}))?"
)
_MODULE_URL: Final = re.compile(r"data:text/javascript;base64,[A-Za-z0-9+/=.]*(:\d+:\d+)?")

_FRAME_TOKEN: Final = b"data:application/script:"
"""Stands in a stack for the script (`sandbox/result/stack_text.ts`)."""

_FRAME_PLACE: Final = re.compile(re.escape(_FRAME_TOKEN) + rb"(\d{1,9}):(\d{1,9})")

_IMPORT_MARKS: Final = (
    "does not provide an export named",
    "not a dependency",
    "Unsupported scheme",
    "Cannot import",
    "Relative import path",
)
_NO_EXPORT: Final = re.compile(r"does not provide an export named '([^']*)'")

_NO_FUNCTION: Final = re.compile(
    r"(?:(?<![\w$.)\]])(?P<owner>[\w$]{1,200})|[\w$)\]])\.(?P<name>[^\s()\[\].]{1,200}) is not a function"
)
_NARROWED: Final = re.compile(r"\b(crypto|performance)\s*\.\s*(?!randomUUID|getRandomValues|now\b)\w+")
_NOT_DEFINED: Final = re.compile(r"([\w$]{1,200}) is not defined")

OUT_OF_MEMORY: Final = "Array buffer allocation failed"


def in_script_terms(text: str, script: Script) -> str:
    """Replaces the `data:` URLs in a message or stack by `NAME:LINE:COLUMN` in the agent's source."""
    if "data:" not in text:
        return text

    def place(match: re.Match[str]) -> str:
        if match[1] is None:
            return script.name
        return script.place(int(match[1]), int(match[2]))

    return _MODULE_URL.sub("@codemode", _SCRIPT_URL.sub(place, text))


def places_in_stacks(body: bytes, script: Script) -> bytes:
    """Gives a log text or a result's JSON in which frames of stacks name places in the agent's source; nothing
    else is touched, as it is the agent's own data (section 3.3.1)."""
    if _FRAME_TOKEN not in body:
        return body

    def place(match: re.Match[bytes]) -> bytes:
        return script.place(int(match[1]), int(match[2])).encode()

    return _FRAME_PLACE.sub(place, body)


def _first_place(text: str, script: Script, *, parsed: bool = False) -> str | None:
    for match in _SCRIPT_URL.finditer(text):
        if match[1] is not None:
            place = script.parsed_place if parsed else script.place
            return place(int(match[1]), int(match[2]))
    return None


def _with_places(text: str, script: Script) -> str:
    return places_in_stacks(text.encode("utf-8", "replace"), script).decode()


def _related(failure: dict[str, Any]) -> str:
    """Gives the first lines of the errors that an error brings along: its cause, or those that it sums up."""
    causes: object = failure.get("causes")
    members: object = failure.get("errors")
    related = (
        ("cause", causes[:1] if is_array(causes) else []),
        ("errors", members[:MAX_RELATED] if is_array(members) else []),
        ("error", [failure.get("error")]),
        ("suppressed", [failure.get("suppressed")]),
    )
    parts = [
        (name, [line for value in values for line in _text(value).splitlines()[:1]])
        for name, values in related
    ]
    return "; ".join(f"{name}: {' | '.join(found)}" for name, found in parts if found)


def _text(value: object, most: int = MAX_TEXT_CHARS) -> str:
    """Gives a text of a failure, cut before anything else: a worker that is taken over fills a whole message
    with one."""
    return value[:most] if isinstance(value, str) else ""


def diagnose(
    kind: protocol.FailureKind,
    failure: object,
    script: Script,
    max_memory_bytes: int,
    exports: Mapping[str, Sequence[str]],
    withheld: Mapping[str, Withheld],
    catalog: Catalog,
) -> Diagnostic:
    """Gives the diagnostic of a failed script.

    Args:
        kind: What has failed, as the worker said.
        failure: What it said of it, decoded, untrusted.
        script: For positions in the agent's own source.
        max_memory_bytes: The run's limit.
        exports: Names that the script's imports could have asked for, by module, to suggest one.
        withheld: Tools of the same servers that the script is not given, by export name.
        catalog: The run's snapshot, for what the script should have imported.
    """
    known = failure if is_object(failure) else {}
    name, text, stack = (_text(known.get(key)) for key in ("name", "message", "stack"))
    hint = _text(known.get("hint"), MAX_HINT_CHARS)
    if kind == "result":
        return error_diagnostic(
            "RESULT_NOT_JSON",
            in_script_terms(text, script)[:MAX_MESSAGE_CHARS],
            "Assign plain JSON data of a moderate size to __codemode_result__.",
            _text(known.get("path"), MAX_HINT_CHARS) or None,
        )
    path = _first_place(stack, script)
    if name == "RangeError" and OUT_OF_MEMORY in text:
        return memory_limit(max_memory_bytes, path)
    is_module = kind == "module"
    if is_module and (found := _module_failure(name, text, script, exports, withheld, catalog)) is not None:
        return found
    label = f"{name}: " if name and name != THROWN_VALUE else ""
    causes = f" ({related})" if (related := _related(known)) else ""
    shown = _with_places(f"{label}{text}{causes}", script)
    hint = (
        hint
        or _function_hint(name, text, exports, withheld, script)
        or _name_hint(name, text, catalog, _line(script, path))
        or _narrowed_hint(name, _line(script, path))
        or next((said for fits, said in _OF_MESSAGES if fits.match(f"{name}: {text}")), "")
        or _exception_hint(kind, name, path, rebuilt=is_module and not stack)
    )
    # Whether nobody caught what `plan.refusal` made of an `import(…)`.
    is_import = name in ("CodemodeError", "ServerNotFoundError") and text.startswith("Cannot import ")
    unhandled = "Unhandled rejection: " if kind == "rejection" else ""
    return error_diagnostic(
        "IMPORT_FAILURE" if is_import else "UNCAUGHT_EXCEPTION",
        shorten(f"{unhandled}{shown}", MAX_MESSAGE_CHARS),
        _with_places(hint, script),
        path,
        name if name in ERROR_CLASSES else None,
    )


def memory_limit(most: int, path: str | None = None) -> Diagnostic:
    """Says that the script used up its memory of so many bytes."""
    return error_diagnostic(
        "SANDBOX_LIMIT",
        f"The script used up its memory: maxMemoryBytes = {most}.",
        "Process the data in smaller pieces, or ask for a larger maxMemoryBytes.",
        path,
        "SandboxLimitError",
    )


def _importing(where: str, script: Script) -> str | None:
    """Gives the module of the static import that a place belongs to: names stand before the module they come
    from."""
    line, column = (int(number) for number in where.split(":")[-2:])
    after = (found for found in script.static if (found.line, found.column) > (line, column))
    found = min(after, key=lambda found: (found.line, found.column), default=None)
    return found.specifier if found is not None else None


def _without_place(line: str, script: Script) -> str:
    """Gives the line without ` at NAME:LINE:COLUMN` at its end. No pattern, which would try each space in
    turn."""
    said, _, place = line.rpartition(" ")
    before = said.removesuffix("at")
    if before == said or before == (kept := before.rstrip()) or len(place.split()) != 1:
        return line
    return kept if place.startswith(script.name) else line


def _module_failure(
    name: str,
    text: str,
    script: Script,
    exports: Mapping[str, Sequence[str]],
    withheld: Mapping[str, Withheld],
    catalog: Catalog,
) -> Diagnostic | None:
    """Gives the diagnostic of a syntax or import failure; None for an exception that the script itself threw.

    The engine puts the position into the message of the former and into the stack of the latter.
    """
    # The engine's syntax errors are SyntaxErrors; those of Deno's parser are TypeErrors.
    parsed = name == "TypeError" and text.startswith("SyntaxError: ")
    where = _first_place(text, script, parsed=parsed)
    if where is None:
        return None
    summary = _without_place(in_script_terms(text, script).splitlines()[0], script)[:MAX_MESSAGE_CHARS]
    if any(mark in text for mark in _IMPORT_MARKS):
        missing = _NO_EXPORT.search(text)
        if missing and (tool := withheld.get(missing[1])):
            return error_diagnostic("IMPORT_FAILURE", _left_out(tool), tool.hint, where, "ToolNotFoundError")
        summary = _MODULE_URL.sub("that module", summary)
        module = _importing(where, script)
        if missing is None:
            return error_diagnostic("IMPORT_FAILURE", summary, "Import only @codemode/* modules.", where)
        names = list(chain(*exports.values())) if module is None else exports.get(module, [])
        return error_diagnostic(
            "IMPORT_FAILURE",
            f"The module has no export {missing[1][:MAX_EXPORT_CHARS]}.",
            _export_hint(missing[1], module, names, catalog),
            where,
            "ToolNotFoundError" if module is None or module.startswith(SERVERS_PREFIX) else "CodemodeError",
        )
    if name == "SyntaxError" or summary.startswith("SyntaxError: "):
        line, column = map(int, where.split(":")[-2:])
        hint = syntax_hint(script.code, line, column) or "Correct the syntax at that position."
        if "Illegal return statement" in summary:
            hint = "Assign the result instead of returning it: globalThis.__codemode_result__ = …"
        message = "SyntaxError: " + summary.removeprefix("SyntaxError: ")
        return error_diagnostic("SYNTAX_ERROR", message, hint, where)
    return None


def _exception_hint(kind: str, name: str, path: str | None, *, rebuilt: bool) -> str:
    """Gives the hint about an exception that nobody caught.

    Args:
        kind: As of the worker's message.
        name: The error's name.
        path: Where it was thrown, if that is known.
        rebuilt: Whether it may stand in place of one whose stack had no frames.
    """
    if kind == "rejection":
        return "Await every promise, or catch its rejection."
    if name == "EvalError":
        return "Code from strings is not available; write the code in the script."
    if name == THROWN_VALUE:
        return "Throw an Error in place of a plain value, which says where it was thrown; or catch it."
    if rebuilt and name in _REBUILT:
        return (
            "Leave error.stack to the engine: without its frames, an error's class and place cannot be told."
        )
    return CORRECT_IT[path is not None]


def _line(script: Script, path: str | None) -> str:
    """Gives the line of the script that a place is in."""
    return line_of(script.code, int(path.split(":")[-2])) if path is not None else ""


def _narrowed_hint(name: str, line: str) -> str | None:
    """Gives the hint about a member that the sandbox has taken off a global, or about a line that is no code."""
    if name == "TypeError" and line.lstrip().startswith("```"):
        return FENCED
    found = _NARROWED.search(line) if name == "TypeError" else None
    return f"The sandbox has no {found[0]}: {deviations()[found[1]]}." if found is not None else None


def _name_hint(name: str, text: str, catalog: Catalog, line: str) -> str | None:
    """Gives the hint about a name that nothing declares."""
    missing = _NOT_DEFINED.match(text) if name == "ReferenceError" else None
    if missing is None:
        return None
    return absent_hint(missing[1], "", catalog) or import_hint(missing[1], catalog, line)


def _left_out(tool: Withheld) -> str:
    return f"The tool {tool.name} is left out: {tool.why}."


def _export_hint(missing: str, specifier: str | None, exports: Sequence[str], catalog: Catalog) -> str:
    """Gives the hint about a name that a module does not export.

    Args:
        missing: The name.
        specifier: The module, if it is known.
        exports: What it exports, or what all the script's modules do.
        catalog: The run's snapshot, for another server that has the name.
    """
    if missing == "default":
        return "There is no default export: import the names, or `import * as`."
    elsewhere = import_hint(missing, catalog) or ""
    if elsewhere.startswith("Import it"):
        return elsewhere
    otherwise = "Use the names in the server's __meta__.tools, or `import * as`."
    if specifier is not None and exports:
        more = ": see __meta__.tools, or `import * as`" if len(exports) > MAX_NAMED else ""
        otherwise = f"It exports {first_few(by_shared_words(missing, exports), MAX_NAMED)}{more}."
    return did_you_mean(nearest_names(missing, exports), elsewhere or otherwise)


def _function_hint(
    name: str,
    text: str,
    exports: Mapping[str, Sequence[str]],
    withheld: Mapping[str, Withheld],
    script: Script,
) -> str | None:
    """Finds a near miss for `files.red_file()`: a namespace has no such member, so the engine calls it no
    function."""
    missing = _NO_FUNCTION.search(text) if name == "TypeError" else None
    if missing is None:
        return None
    name = missing["name"]
    tool = withheld.get(name) or next((one for one in withheld.values() if one.name == name), None)
    if tool is not None:
        return f"{_left_out(tool)} {tool.hint}"
    owner = missing["owner"]
    if not script.has_namespace(owner) if owner else missing[0][0] != ")":
        # A member of something else than a module: none of a module's names is meant.
        return None
    return did_you_mean(nearest_names(name, sorted(chain(*exports.values()))))
