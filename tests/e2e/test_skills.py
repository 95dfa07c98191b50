"""Approved scripts as skills (SEP-2640), read by FastMCP's client, which knows the extension, over HTTP."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from cellblock.base.settings.server import AuthSettings
from cellblock.base.store import LocalStore
from cellblock.record.scripts.library import Approval, Library, entry_of
from cellblock.record.scripts.script_file import CLOSING, OPENING, Header, format_script, read_script
from cellblock.serve.mcp.skills import skill_list, skill_text
from cellblock.tools.catalog.model import Catalog
from support.http_daemon import Daemon, daemon
from support.waits import until_found

CODE = "globalThis.__codemode_result__ = { twice: 2 * input.count };\n"
INPUT = {"type": "object", "properties": {"count": {"type": "number"}}, "required": ["count"]}
DESCRIPTION = 'Doubles: "a count" — no more \N{SLIGHTLY SMILING FACE}.\nThen ends.'


def approve(served: Daemon, name: str, **header: Any) -> None:
    state = served.folder / "s"
    library = Library(LocalStore(state), AuthSettings(keyring="off"), None, state)
    library.approvals.approve(
        format_script(name, Header(description=DESCRIPTION, input=INPUT, **header), CODE)
    )


async def test_a_real_client_finds_and_reads_skills(tmp_path: Path) -> None:
    # Imported here: it takes long, and each process that collects tests would do it.
    fastmcp = pytest.importorskip("fastmcp")
    skills = pytest.importorskip("fastmcp.skills")
    async with daemon(tmp_path) as served:
        client = fastmcp.Client(served.url, auth=served.token, extensions=[skills.SkillsClientExtension()])
        async with client:
            assert await client.list_skills() == []
            approve(served, "twice_it")
            (listed,) = await until_found(client.list_skills, "the approved script is a skill")
            assert listed.uri == "skill://twice-it/SKILL.md"
            one = await client.get_skill(listed.uri)
            assert one == listed
            (resource,) = [one for one in await client.list_resources() if str(one.uri) == listed.uri]
            assert (resource.name, resource.description) == ("twice-it", DESCRIPTION)
            assert resource.mime_type == "text/markdown"
            (read,) = await client.read_resource(listed.uri)
            assert sha256(read.text.encode()).hexdigest() == one.resources[0].digest.removeprefix("sha256:")
            assert len(read.text.encode()) == one.resources[0].size
            assert yaml.safe_load(read.text.split("---\n")[1]) == one.frontmatter.root
            assert one.frontmatter.description == DESCRIPTION
            code = read.text.split("```js\n")[1].split("```")[0].replace("/* its input */", "count: 21")
            ran = await client.call_tool("codemode.run", {"code": code})
            assert ran.structured_content["result"] == {"twice": 42}
            with pytest.raises(Exception, match="no skill"):
                await client.get_skill("skill://other/SKILL.md")


@pytest.mark.parametrize("hidden", ["007f", "0085", "2028", "202e", "000a", "d83d\\ude42"])
def test_a_description_is_one_text_to_yaml_and_to_json(hidden: str) -> None:
    text = f'{OPENING}{{"description": "Odd\\u{hidden}: one"}}{CLOSING}{CODE}'
    script = read_script("odd", text.encode())
    catalog = Catalog(servers={"scripts": entry_of({"odd": Approval(script, "someone", 0.0)})})
    (listed,) = skill_list(catalog).skills
    text = skill_text(catalog, listed["uri"])
    assert yaml.safe_load(text.split("---\n")[1]) == listed["frontmatter"]
