"""What a tool's name must be to be registered: something that can be sent, stored and read."""

from __future__ import annotations

from cellblock.base.errors import ConfigError
from cellblock_worker.wire.protocol import MAX_NAME_CHARS


def check_tool_name(name: str) -> None:
    """Raises ConfigError unless `name` can be a Python tool's."""
    shown = ascii(name[:60]) + ("…" if len(name) > 60 else "")
    if not name.strip():
        raise ConfigError("A Python tool has an empty name.", hint="Give it one: @tool(name=…).")
    if len(name) > MAX_NAME_CHARS:
        raise ConfigError(
            f"The Python tool {shown} has a name of {len(name)} characters, over {MAX_NAME_CHARS}.",
            hint="Shorten it, or give another: @tool(name=…).",
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"The Python tool {shown} has half of a surrogate pair in its name.",
            hint="Use whole characters, or give another name: @tool(name=…).",
        ) from None
