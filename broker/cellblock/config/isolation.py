"""Settings of isolation say what is around workers."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BeforeValidator

from cellblock.config.sections import Section

IsolationMode = Literal["required", "auto", "off"]


class IsolationSettings(Section):
    """Sets what is around each worker, and around the type checker's compiler. A word alone is the `mode`."""

    mode: IsolationMode = "auto"
    """Namespaces around each worker by bubblewrap: `auto` uses them where the machine offers them, `required` does not
    start without. Cgroups, one for each worker and one around all, are used with both where they can be had, and
    demanded by neither: without, a script's data is capped all the same. `off` uses neither namespaces nor cgroups."""

    seccomp: Literal["enforce", "log"] = "enforce"
    """Says what becomes of a system call that Deno was not seen to need: `enforce` refuses it, `log` lets it go on, and
    the kernel logs it, to find what is missing after a change of Deno. What no worker ever needs is refused with
    both."""


_MODES: Final = get_args(IsolationMode)


def _of_word(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in _MODES:
        raise ValueError(f"Input should be {', '.join(map(repr, _MODES[:-1]))} or {_MODES[-1]!r}")
    return {"mode": value}


Isolation = Annotated[
    IsolationSettings, BeforeValidator(_of_word, json_schema_input_type=IsolationMode | IsolationSettings)
]
