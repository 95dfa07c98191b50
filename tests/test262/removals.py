"""The table of differences: where a worker may end a case otherwise than bare Deno, and where that is documented.

`documented` is text of the agent's manual (Code Mode specification, section 3.5: deviations are documented).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from test262.engines import NEVER_SETTLED, Compared

IMPORTS: Final = "Only @codemode/* can be imported"
CODE_FROM_TEXT: Final = "Function: present for instanceof; calling it with source text throws EvalError"
NO_EVAL: Final = "eval"
NO_SHARED_MEMORY: Final = "Atomics"
STACK_HOOK: Final = "Error.prepareStackTrace cannot be set"

_NO_CODE: Final = "EvalError: Code generation from strings disallowed for this context"

OWN: Final[dict[str, tuple[str, str]]] = {
    "dynamic_import/removed_computed_data_url": (
        IMPORTS,
        'CodemodeError: Cannot import "data:text/javascript,export default 7": only @codemode/* modules exist here.',
    ),
    "dynamic_import/removed_data_url": (
        IMPORTS,
        "CodemodeError: Cannot import 'data:text/javascript,export default 7': only @codemode/* modules exist here.",
    ),
    "dynamic_import/removed_json_module": (
        IMPORTS,
        "CodemodeError: Cannot import 'data:application/json,[7]': only @codemode/* modules exist here.",
    ),
    "dynamic_import/removed_node_module": (
        IMPORTS,
        "CodemodeError: Cannot import 'node:path': only @codemode/* modules exist here.",
    ),
    "dynamic_import/removed_static_data_url": (
        IMPORTS,
        "Cannot import 'data:text/javascript,export default 7': only @codemode/* modules exist here.",
    ),
    "promise/removed_dynamic_async_function": (CODE_FROM_TEXT, _NO_CODE),
    "proxy/removed_function_constructor": (CODE_FROM_TEXT, _NO_CODE),
    "reflect/removed_construct_function": (CODE_FROM_TEXT, _NO_CODE),
    "reflect/removed_eval": (NO_EVAL, "ReferenceError: eval is not defined"),
    "reflect/removed_prepare_stack_trace": (STACK_HOOK, "Test262Error: set: got false, expected true"),
    "reflect/removed_shared_memory": (
        NO_SHARED_MEMORY,
        "ReferenceError: SharedArrayBuffer is not defined",
    ),
}
"""This project's own cases that end differently: the manual's words, and the exact outcome in a worker."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A removal as test262's files meet it: what a file must use, and what its outcome must then look like."""

    documented: str
    uses: re.Pattern[str]
    ends: re.Pattern[str]


SUITE: Final = (
    Removal(
        IMPORTS,
        # Every specifier of the suite names a file beside the case.
        uses=re.compile(r"""['"]\./|<module source>|import\w*\(['"]"""),
        ends=re.compile(
            r"Cannot import|CodemodeError"
            # Checks of what a fixture would have done.
            r"|Actual \[\] and expected \[42, 39\]|Expected SameValue\(«0», «1»\)"
        ),
    ),
    Removal(CODE_FROM_TEXT, uses=re.compile(r"\bFunction\b"), ends=re.compile(re.escape(_NO_CODE))),
    Removal(
        NO_EVAL,
        uses=re.compile(r"\beval\b"),
        ends=re.compile(r"eval is not defined|Expected a TypeError but got a ReferenceError"),
    ),
)


def documented(compared: Compared) -> str | None:
    """The manual's words for a difference, or None when it is not documented."""
    case = compared.case
    if case.name in OWN:
        words, outcome = OWN[case.name]
        return words if compared.bare == "passed" and compared.worker == outcome else None
    if compared.worker == NEVER_SETTLED or case.throws is not None:
        return None
    for removal in SUITE:
        if removal.uses.search(case.program) and removal.ends.search(compared.worker):
            return removal.documented
    return None
