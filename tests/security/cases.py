"""What a hostile script is, what may become of it, and the words in which the case files say so."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cellblock import RunResponse

MIB: Final = 1024 * 1024

Expectation = Callable[[RunResponse], None]
"""Raises AssertionError unless the response is the safe behaviour."""

SHORT: Final[Mapping[str, int]] = {"timeoutMs": 400}
"""Limits of a script that would never end by itself."""

LEAN: Final[Mapping[str, int]] = {"maxMemoryBytes": 32 * MIB, "timeoutMs": 60_000}
"""Limits of a script that takes memory; the time only bounds a failing test."""

DEFAULT: Final[Mapping[str, int]] = {"timeoutMs": 60_000}


@dataclass(frozen=True)
class Case:
    """One hostile script: `name` is unique in the suite, `expect` is what must be seen."""

    name: str
    code: str
    expect: Expectation
    limits: Mapping[str, int] = field(default_factory=lambda: DEFAULT)


def shown(response: RunResponse) -> str:
    """The response as a client has it, shortened for a failure's message."""
    return json.dumps(response.as_json())[:2_000]


def result(wanted: Any) -> Expectation:
    """The run ends well with exactly this value: the script itself reports what it could reach."""

    def check(response: RunResponse) -> None:
        assert (response.ok, response.result) == (True, wanted), shown(response)

    return check


def error(code: str, *texts: str) -> Expectation:
    """No result, and an error diagnostic with this code, a hint, and all of the texts in its message."""

    def check(response: RunResponse) -> None:
        assert response.diagnostics, shown(response)
        first = response.diagnostics[0]
        assert (first.severity, first.code, response.result) == ("error", code, None), shown(response)
        assert first.hint and all(text in first.message for text in texts), shown(response)

    return check


def throws(name: str, text: str = "") -> Expectation:
    """The engine, or a stand-in of the sandbox, throws an error of this class which ends the script."""

    def check(response: RunResponse) -> None:
        error("UNCAUGHT_EXCEPTION", text)(response)
        message = response.diagnostics[0].message.removeprefix("Unhandled rejection: ")
        assert message.startswith(f"{name}: "), shown(response)

    return check


def limit(name: str) -> Expectation:
    """The run is ended because of this limit (section 7.4)."""

    def check(response: RunResponse) -> None:
        error("SANDBOX_LIMIT", name)(response)
        assert response.diagnostics[0].error_class == "SandboxLimitError", shown(response)

    return check


refused_import: Final = error("IMPORT_FAILURE", "Cannot import")
"""The specifier leads nowhere, and the script is told so before anything is fetched."""


def log_cut(response: RunResponse) -> None:
    """The script went on; its logs end with the warning that they were truncated (section 3.3.1)."""
    result("went on")(response)
    assert response.logs[-1].level == "warn" and "truncated" in response.logs[-1].message, shown(response)


def either(*allowed: Expectation) -> Expectation:
    """One of several endings, where a race or the engine decides; all of them are safe."""

    def check(response: RunResponse) -> None:
        failures: list[str] = []
        for expectation in allowed:
            try:
                return expectation(response)
            except (AssertionError, IndexError) as failure:
                failures.append(str(failure))
        raise AssertionError(failures[0])

    return check


def gives(expression: str, before: str = "") -> str:
    """A script whose result is the expression's value."""
    return f"{before}\nglobalThis.__codemode_result__ = {expression};"


def attempts(*works: str, before: str = "") -> str:
    """A script that tries each piece of code alone; its result lists the names of what they threw, or "nothing"."""
    tried = "\n".join(
        f"try {{ {work} ; seen.push('nothing'); }} catch (error) {{ seen.push(error.name); }}"
        for work in works
    )
    return gives("seen", f"{before}\nconst seen = [];\n{tried}")
