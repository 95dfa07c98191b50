"""Steps are what a script does, as a script that real workers run and, in its first line, as data for synthetic
ones."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

MARK: Final = "// steps: "

_MAIN: Final = re.compile(rb'"main": "data:[^;"]*;base64,([^"]*)"')
_STEPS: Final = re.compile(rb"^// steps: (.*)$", re.MULTILINE)


class Calls(NamedTuple):
    """Makes calls of one tool, each when the one before is answered."""

    times: int
    server: str
    tool: str
    arguments: dict[str, Any]


Step = Calls | int
"""Makes calls, or waits for so many milliseconds."""


class NoSteps(ValueError):
    """A script says no steps; the text says what was looked for."""


def script_of(steps: Sequence[Step]) -> str:
    """Returns the script that takes these steps and gives the number of its calls."""
    calls = [step for step in steps if isinstance(step, Calls)]
    lines = [MARK + json.dumps(steps, separators=(",", ":"))]
    lines += [
        f'import * as {server} from "@codemode/servers/{server}";'
        for server in {one.server: 0 for one in calls}
    ]
    lines.append("let calls = 0;")
    for step in steps:
        if isinstance(step, int):
            lines.append(f"await new Promise((go) => setTimeout(go, {step}));")
        else:
            call = f"await {step.server}.{step.tool}({json.dumps(step.arguments)});"
            lines.append(f"for (let n = 0; n < {step.times}; n++) {{\n  {call}\n  calls++;\n}}")
    return "\n".join([*lines, "globalThis.__codemode_result__ = calls;", ""])


def steps_in(body: bytes) -> list[Step]:
    """Returns the steps of the script in what a worker is sent to run.

    Raises:
        NoSteps: It says none.
    """
    main = _MAIN.search(body)
    said = None if main is None else _STEPS.search(base64.b64decode(main[1]))
    if said is None:
        raise NoSteps(f"the script has no line that begins with {MARK!r}")
    return [step if isinstance(step, int) else Calls(*step) for step in json.loads(said[1])]


def calls_in(steps: Sequence[Step]) -> int:
    """Returns how many calls the steps make."""
    return sum(step.times for step in steps if isinstance(step, Calls))
