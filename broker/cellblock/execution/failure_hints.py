"""The one corrective action for a failure that the engine reports (Code Mode specification, section 3.3.3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cellblock.catalog.absent_globals import absent_hint
from cellblock.catalog.model import Withheld
from cellblock.catalog.modules import SERVERS_PREFIX
from cellblock.catalog.suggest import nearest_names

MAX_NAMED: Final = 12
"""Exports that a hint names."""

THROWN_VALUE: Final = "Thrown value"
"""The name that the sandbox gives to what was thrown and is no error."""

_REBUILT: Final = ("Error", "RangeError", "ReferenceError", "SyntaxError", "TypeError")
"""Names of errors that Deno puts in place of one without frames (`sandbox/failure.ts`)."""

_NO_FUNCTION: Final = re.compile(r"[\w$)\]]\.([^\s()\[\]]{1,200}) is not a function")
_NOT_DEFINED: Final = re.compile(r"([\w$]{1,200}) is not defined")


def exception_hint(
    kind: str,
    name: str,
    text: str,
    path: str | None,
    exports: Iterable[str],
    withheld: Mapping[str, Withheld],
    *,
    rebuilt: bool = False,
) -> str:
    """Of an exception that nobody caught.

    Args:
        kind: As of the worker's message.
        name: The error's name.
        text: Its message.
        path: Where it was thrown, if that is known.
        exports: Names that the script's imports have.
        withheld: Tools that the script is not given, by export name.
        rebuilt: Whether it may stand in place of one whose stack had no frames.
    """
    known = _missing_function(text, exports, withheld) if name == "TypeError" else None
    if known is not None:
        return known
    if name == "ReferenceError" and (missing := _NOT_DEFINED.match(text)):
        absent = absent_hint(missing[1])
        if absent is not None:
            return absent
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
    if path is None:
        return "Correct what the message names, or catch the exception."
    return "Correct the script at that position, or catch the exception."


def syntax_hint(summary: str) -> str:
    """Of a syntax error, from the engine's message."""
    if "Illegal return statement" in summary:
        return "Assign the result instead of returning it: globalThis.__codemode_result__ = …"
    return "Correct the syntax at that position."


def left_out(tool: Withheld) -> str:
    """Why a tool is not there, in one sentence."""
    return f"The tool {tool.name} is left out: {tool.why}."


def export_hint(missing: str, specifier: str | None, exports: Sequence[str]) -> str:
    """Of a name that a module does not export.

    Args:
        missing: The name.
        specifier: The module, if it is known.
        exports: What it exports, or what all the script's modules do.
    """
    if missing == "default":
        return "There is no default export: import the names, or `import * as`."
    near = nearest_names(missing, exports)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    if specifier is not None and not specifier.startswith(SERVERS_PREFIX) and exports:
        return f"It exports {', '.join(exports[:MAX_NAMED])}."
    return "Use the names in the server's __meta__.tools, or `import * as`."


def _missing_function(text: str, exports: Iterable[str], withheld: Mapping[str, Withheld]) -> str | None:
    """A near miss for `files.red_file()`: a namespace has no such member, so the engine calls it no function."""
    missing = _NO_FUNCTION.search(text)
    if missing is None:
        return None
    tool = withheld.get(missing[1]) or next(
        (one for one in withheld.values() if one.name == missing[1]), None
    )
    if tool is not None:
        return f"{left_out(tool)} {tool.hint}"
    near = nearest_names(missing[1], exports)
    return f"Did you mean {' or '.join(near)}?" if near else None
