"""Language cases in workers: each of tests/test262 passes, or ends as its front matter or the manual says."""

import re
from pathlib import Path
from typing import Final

import pytest

from cellblock import Broker
from cellblock.app.assembly import front_config
from cellblock.base.settings.settings import Settings
from cellblock.serve.mcp.manual import manual
from support.waits import within

pytestmark = pytest.mark.thorough

FOLDER: Final = Path(__file__).parents[1] / "test262"
HARNESS: Final = FOLDER / "harness"
CASES: Final = sorted(file for file in FOLDER.glob("*/*.js") if file.parent != HARNESS)

ONLY_OURS: Final = "only @codemode/* modules exist here."
NO_CODE: Final = "EvalError: Code generation from strings disallowed for this context"

IMPORTS: Final = "Only @codemode/* can be imported"
CODE_FROM_TEXT: Final = "Function: present for instanceof; calling it with source text throws EvalError"

REMOVED: Final = {
    "removed_computed_data_url": (IMPORTS, f'"data:text/javascript,export default 7": {ONLY_OURS}'),
    "removed_data_url": (IMPORTS, f"Cannot import 'data:text/javascript,export default 7': {ONLY_OURS}"),
    "removed_json_module": (IMPORTS, f"Cannot import 'data:application/json,[7]': {ONLY_OURS}"),
    "removed_node_module": (IMPORTS, f"Cannot import 'node:path': {ONLY_OURS}"),
    "removed_static_data_url": (IMPORTS, f"'data:text/javascript,export default 7': {ONLY_OURS}"),
    "removed_dynamic_async_function": (CODE_FROM_TEXT, NO_CODE),
    "removed_function_constructor": (CODE_FROM_TEXT, NO_CODE),
    "removed_construct_function": (CODE_FROM_TEXT, NO_CODE),
    "removed_eval": ("eval", "ReferenceError: eval is not defined"),
    "removed_prepare_stack_trace": (
        "globalThis.Error cannot be replaced, nor Error.prepareStackTrace set",
        "Test262Error: set: got false, expected true",
    ),
    "removed_shared_memory": ("Atomics", "ReferenceError: SharedArrayBuffer is not defined"),
}
"""What the agent's manual says of the cases that use what is not there, and how they end."""


def test_what_is_removed_is_in_the_agents_manual() -> None:
    text = manual(front_config(Settings()))
    assert all(words in text for words, _ in REMOVED.values())
    assert {file.stem for file in CASES if file.stem.startswith("removed_")} == set(REMOVED)


def text_of(file: Path) -> str:
    # Not as text: some cases are about their line ends.
    return file.read_bytes().decode("utf-8")


@pytest.mark.parametrize("file", CASES, ids=lambda file: f"{file.parent.name}/{file.stem}")
async def test_a_case_ends_as_it_says(broker: Broker, file: Path) -> None:
    program = text_of(file)
    found = re.search(r"/\*---(.*?)---\*/", program, re.DOTALL)
    meta = found[1] if found else ""
    throws = re.search(r"^\s+type:\s*(\S+)", meta, re.MULTILINE)
    # What must not even start needs no harness, whose names could only get in its way.
    if "negative" not in meta or "runtime" in meta:
        harness = [text_of(HARNESS / name) for name in ("sta.js", "assert.js")]
        program = "\n".join([*harness, program])
    response = await within(broker.run(program))
    errors = [one.message for one in response.diagnostics if one.severity == "error"]
    if throws is not None:
        assert errors and (throws[1] in errors[0] or "has no export" in errors[0]), errors
    elif file.stem in REMOVED:
        assert errors and REMOVED[file.stem][1] in errors[0], errors
    else:
        assert errors == []
