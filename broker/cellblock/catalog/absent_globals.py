"""What to do in place of a global that scripts know from elsewhere and the sandbox does not have."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final

from cellblock_worker.confinement import BUNDLE_DIR

_ELSEWHERE: Final = frozenset(
    [
        "fetch",
        "XMLHttpRequest",
        "WebSocket",
        "process",
        "require",
        "Buffer",
        "Deno",
        "Bun",
        "window",
        "document",
        "module",
        "exports",
        "__dirname",
        "__filename",
        "setImmediate",
        "localStorage",
        "navigator",
    ]
)


def absent_hint(name: str, module: str = "") -> str | None:
    """One corrective action for a global that is not there; None for a name that is nobody's global.

    Args:
        name: The global.
        module: Of `require`, what it asks for, if that is known.
    """
    if name == "require" and module.startswith("@codemode/"):
        return f'The sandbox has no require: write `import {{ … }} from "{module}"`.'
    if name == "require" and not module:
        return "The sandbox has no require: write `import`, of @codemode/* modules only."
    deviations = _deviations()
    if name in deviations:
        return f"In the sandbox, {name} is {deviations[name]}."
    if name in _ELSEWHERE:
        return f"The sandbox has no {name}: use tools of @codemode/servers/*."
    return None


@lru_cache(maxsize=1)
def _deviations() -> dict[str, str]:
    table: dict[str, str] = json.loads((BUNDLE_DIR / "globals.json").read_text(encoding="utf-8"))[
        "deviations"
    ]
    return {name: text for name, text in table.items() if text.startswith("absent")}
