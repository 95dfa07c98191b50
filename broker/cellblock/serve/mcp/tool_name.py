"""Says what the one tool is called: `codemode.run` by the specification, `codemode_run` where a dot would be refused.

The APIs of OpenAI and Anthropic take letters, digits, `_` and `-` in the name of a tool. Some clients put other names
into that form; some pass them on, or leave the tool out. docs/clients.md has the sources.
"""

from __future__ import annotations

from typing import Final

from cellblock.base.settings.settings import FrontendSettings

TOOL_NAME: Final = "codemode.run"
PLAIN_NAME: Final = "codemode_run"

VS_CODE: Final = (
    "code - oss",
    "code-server",
    "visual studio code",
    "visual studio code - insiders",
    "visual-studio-code",
    "vscodium",
    "vscodium - insiders",
)
"""Names VS Code and what is built from it, as in `initialize` but in lower case."""

WITHOUT_DOTS: Final = frozenset(
    [
        *VS_CODE,
        "claude-ai",
        "claude-code",
        "codex-mcp-client",
        "cursor",
        "cursor-vscode",
        "github-copilot-developer",
        "goose",
        "goose-cli",
        "goose-desktop",
        "opencode",
        "windsurf",
        "windsurf-client",
        "zed",
    ]
)
"""Names the clients, as in `initialize` but in lower case, that refuse a dot, leave such a tool out, warn of it, write
`_` in its place, or of which that is not known."""

COPILOT_OF_JETBRAINS: Final = "/copilot-intellij"
"""Ends the name of GitHub Copilot for JetBrains' editors, behind that of the editor."""


def tool_names(settings: FrontendSettings) -> frozenset[str]:
    """Returns the names by which the tool can be called."""
    return frozenset([TOOL_NAME] if settings.strict else [TOOL_NAME, PLAIN_NAME])


def tool_name_for(client: str, settings: FrontendSettings) -> str:
    """Returns the tool's name for a client, by the name that the client gives itself."""
    if settings.strict:
        return TOOL_NAME
    if settings.tool_name != "auto":
        return settings.tool_name
    name = client.lower()
    return PLAIN_NAME if name in WITHOUT_DOTS or name.endswith(COPILOT_OF_JETBRAINS) else TOOL_NAME
