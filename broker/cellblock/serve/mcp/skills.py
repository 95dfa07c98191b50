"""Serves approved scripts as skills (SEP-2640): each is a `SKILL.md` that says what it does, and how it is called.

The messages are those of the stable text (specification/stable of modelcontextprotocol/ext-skills); the SDK has none of
its own yet (python-sdk#3485).
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from cellblock.base.visible import visible
from cellblock.tools.catalog.model import SCRIPTS, Catalog, ToolEntry

EXTENSION: Final = "io.modelcontextprotocol/skills"
"""Names the extension in the capabilities of the server."""

SCHEME: Final = "skill://"
FILE: Final = "/SKILL.md"
MARKDOWN: Final = "text/markdown"


class SkillList(types.PaginatedResult, types.CacheableResult):
    """Describes the result of `skills/list`."""

    skills: list[dict[str, Any]]


class OneSkill(types.CacheableResult):
    """Describes the result of `skills/get`."""

    skill: dict[str, Any]


def skill_list(catalog: Catalog) -> SkillList:
    """Lists the skills that a client is granted."""
    return SkillList(skills=[_entry(uri, tool) for uri, tool in _skills(catalog).items()])


def one_skill(catalog: Catalog, uri: str) -> OneSkill:
    """Returns one skill. Raises MCPError: There is none."""
    return OneSkill(skill=_entry(uri, _tool(catalog, uri)))


def skill_text(catalog: Catalog, uri: str) -> str:
    """Returns the text of a skill. Raises MCPError: There is none."""
    return _text(_tool(catalog, uri))


def skill_resources(catalog: Catalog) -> list[types.Resource]:
    """Returns the texts of the skills as resources, for clients that list those."""
    return [
        types.Resource.model_validate({"uri": uri, "mimeType": MARKDOWN, **_frontmatter(tool)})
        for uri, tool in _skills(catalog).items()
    ]


def _skills(catalog: Catalog) -> dict[str, ToolEntry]:
    tools = [tool for server in catalog.servers.values() if server.is_scripts for tool in server.tools]
    return {f"{SCHEME}{_frontmatter(tool)['name']}{FILE}": tool for tool in tools}


def _tool(catalog: Catalog, uri: str) -> ToolEntry:
    tool = _skills(catalog).get(uri)
    if tool is None:
        raise MCPError(
            types.INVALID_PARAMS, f"There is no skill {uri}; skills/list has those that there are."
        )
    return tool


def _frontmatter(tool: ToolEntry) -> dict[str, str]:
    said = visible(tool.description or tool.tool_name, keep="\n\t")
    return {"name": tool.tool_name.replace("_", "-"), "description": said}


def _entry(uri: str, tool: ToolEntry) -> dict[str, Any]:
    body = _text(tool).encode()
    file = {"uri": uri, "digest": f"sha256:{sha256(body).hexdigest()}", "size": len(body)}
    return {"uri": uri, "frontmatter": _frontmatter(tool), "resources": [file]}


def _text(tool: ToolEntry) -> str:
    # A text of JSON is one of YAML, but for characters that are two escapes in JSON.
    said = "".join(
        f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in _frontmatter(tool).items()
    )
    returns = "" if tool.output_schema is None else f"\nIt returns:\n\n{_fenced(tool.output_schema)}"
    return f"""---
{said}---

# {tool.tool_name}

A script that the user has approved. Call it in one script of `codemode.run`; do not write it anew:

```js
import {{ {tool.export_name} }} from "{SCRIPTS}";
globalThis.__codemode_result__ = await {tool.export_name}({{ /* its input */ }});
```

Its input:

{_fenced(tool.input_schema)}{returns}"""


def _fenced(schema: Any) -> str:
    return f"```json\n{json.dumps(schema, ensure_ascii=False, indent=2)}\n```\n"
