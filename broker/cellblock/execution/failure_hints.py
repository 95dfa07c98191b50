"""The one corrective action for a failure that the engine reports (Code Mode specification, section 3.3.3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from cellblock.catalog.absent_globals import absent_hint, import_hint
from cellblock.catalog.model import Catalog, Withheld
from cellblock.catalog.modules import SERVERS_PREFIX
from cellblock.catalog.suggest import nearest_names

MAX_NAMED: Final = 12
"""Bounds the exports that a hint names."""

THROWN_VALUE: Final = "Thrown value"
"""The name that the sandbox gives to what was thrown and is no error."""

CORRECT_IT: Final = (
    "Correct what the message names, or catch the exception.",
    "Correct the script at that position, or catch the exception.",
)
"""Hints for exceptions of which nothing is known, without a place and with one."""

_REBUILT: Final = ("Error", "RangeError", "ReferenceError", "SyntaxError", "TypeError")
"""Names of errors that Deno puts in place of one without frames (`sandbox/result/failure.ts`)."""

_NO_FUNCTION: Final = re.compile(
    r"(?:(?<![\w$.)\]])(?P<owner>[\w$]{1,200})|[\w$)\]])\.(?P<name>[^\s()\[\].]{1,200}) is not a function"
)
_NOT_DEFINED: Final = re.compile(r"([\w$]{1,200}) is not defined")


def exception_hint(
    kind: str,
    name: str,
    text: str,
    path: str | None,
    exports: Iterable[str],
    withheld: Mapping[str, Withheld],
    *,
    catalog: Catalog,
    namespaces: Callable[[str], bool],
    rebuilt: bool = False,
) -> str:
    """Gives the hint about an exception that nobody caught.

    Args:
        kind: As of the worker's message.
        name: The error's name.
        text: Its message.
        path: Where it was thrown, if that is known.
        exports: Names that the script's imports have.
        withheld: Tools that the script is not given, by export name.
        catalog: The run's snapshot.
        namespaces: Whether a name is that of a module in the script.
        rebuilt: Whether it may stand in place of one whose stack had no frames.
    """
    known = _missing_function(text, exports, withheld, namespaces) if name == "TypeError" else None
    if known is not None:
        return known
    if name == "ReferenceError" and (missing := _NOT_DEFINED.match(text)):
        absent = absent_hint(missing[1], catalog=catalog) or import_hint(missing[1], catalog)
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
        return CORRECT_IT[0]
    return CORRECT_IT[1]


def syntax_hint(summary: str) -> str:
    """Gives the hint about a syntax error, from the engine's message."""
    if "Illegal return statement" in summary:
        return "Assign the result instead of returning it: globalThis.__codemode_result__ = …"
    return "Correct the syntax at that position."


def left_out(tool: Withheld) -> str:
    """Says why a tool is not there, in one sentence."""
    return f"The tool {tool.name} is left out: {tool.why}."


def export_hint(missing: str, specifier: str | None, exports: Sequence[str]) -> str:
    """Gives the hint about a name that a module does not export.

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


def _missing_function(
    text: str, exports: Iterable[str], withheld: Mapping[str, Withheld], namespaces: Callable[[str], bool]
) -> str | None:
    """Finds a near miss for `files.red_file()`: a namespace has no such member, so the engine calls it no
    function."""
    missing = _NO_FUNCTION.search(text)
    if missing is None:
        return None
    name = missing["name"]
    tool = withheld.get(name) or next((one for one in withheld.values() if one.name == name), None)
    if tool is not None:
        return f"{left_out(tool)} {tool.hint}"
    owner = missing["owner"]
    if not namespaces(owner) if owner else missing[0][0] != ")":
        # A member of something else than a module: none of a module's names is meant.
        return None
    near = nearest_names(name, sorted(exports))
    return f"Did you mean {' or '.join(near)}?" if near else None
