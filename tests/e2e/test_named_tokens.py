"""Named tokens at a daemon that runs."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from support.commands import Said, cellblock, in_this_process
from support.http_daemon import TOOL, daemon, opened
from support.waits import within

ECHO = (
    'import { echo } from "@codemode/servers/plain"; globalThis.__codemode_result__ = await echo({ is: 1 });'
)


def token(folder: Path, *arguments: object) -> Said:
    place = ("--config", folder / "cellblock.json", "--state-dir", folder / "s")
    return in_this_process("token", *arguments, *place)


async def test_each_is_a_principal_of_its_own_until_it_is_revoked(tmp_path: Path) -> None:
    only = '{"tools": ["plain.fail"]}'
    async with daemon(tmp_path, audit=["calls"]) as owner:

        def create(*arguments: str) -> Any:
            return replace(owner, token=token(tmp_path, "create", *arguments).out.strip())

        ann, bob = (
            await asyncio.to_thread(create, "ann"),
            await asyncio.to_thread(create, "bob", "--grants", only),
        )
        for mode in ("auto", "legacy"):
            async with ann.client(mode) as client:
                result = await within(client.call_tool(TOOL, {"code": ECHO}))
                assert (
                    result.structured_content is not None and result.structured_content["diagnostics"] == []
                )
            async with bob.client(mode) as client:
                listed = await within(client.list_tools())
                assert "echo" not in (listed.tools[0].description or "")
                result = await within(client.call_tool(TOOL, {"code": ECHO}))
                said = json.dumps(result.structured_content)
                assert "The tool echo is left out: the policy for this client does not grant it" in said

        session = await opened(ann)
        ping = json.dumps({"jsonrpc": "2.0", "id": 5, "method": "ping"}).encode()
        assert (await ann.ask(headers=session, body=ping)).status == 200

        # The dashboard shows the runs of all by name, and not to all.
        state = json.loads((await owner.ask("GET", "/dashboard/state", headers=owner.auth)).body)
        clients = {run["client"].split(" session")[0].split(" 127")[0] for run in state["recent"]}
        assert clients == {"http token:ann", "http token:bob"}
        for path, method, status in (
            ("/dashboard", "GET", 403),
            ("/dashboard/state", "GET", 403),
            ("/dashboard/kept", "GET", 403),
            ("/dashboard/runs/0123456789abcdef", "GET", 403),
            ("/dashboard/code", "POST", 403),
            ("/metrics", "GET", 200),
        ):
            assert (await ann.ask(method, path, headers=ann.auth)).status == status

        file = tmp_path / "mine"
        file.touch(0o600)
        file.write_text(ann.token or "")
        page = await cellblock("dashboard", "--no-open", "--url", owner.url, "--token-file", file)
        assert page.code == 3 and "a named one does not open it" in page.err

        # A session that is open ends with its token.
        place = ("--config", tmp_path / "cellblock.json", "--state-dir", tmp_path / "s")
        said = await cellblock("token", "revoke", "ann", "--everything", *place)
        nothing = "0 secrets, 0 kept runs, 0 kept outputs, and what was learnt of 0 tools"
        assert said.out == f"revoked ann\nRemoved of token:ann: {nothing}.\n"
        assert (await ann.ask(headers=session, body=ping)).status == 401
        page = await cellblock("connect", "--no-start", "--url", owner.url, "--token-file", file)
        assert page.code == 3 and "refuses the token. It has expired or was revoked" in page.err
        assert (await bob.ask("GET", "/metrics", headers=bob.auth)).status == 200
    lines = [json.loads(line) for line in (tmp_path / "s" / "audit.jsonl").read_text().splitlines()]
    assert {line["client"].split()[1] for line in lines if line["event"] == "call"} == {"token:ann"}


def test_what_is_said_of_them(tmp_path: Path) -> None:
    (tmp_path / "cellblock.json").write_text('{"mcpServers": {}}')
    said = partial(token, tmp_path)
    assert said("list") == (0, "There are no named tokens.\n", "")
    for wrong, why in (
        (("create", "ci", "--expires", "tomorrow"), "write a span such as"),
        (("create", "ci", "--expires", "2020-01-01"), "over already"),
        (("create", "ci", "--expires", "0d"), "write a span such as"),
        (("create", "ci", "--grants", '{"tols": []}'), "tols"),
        (("create", "ci", "--grants", '{"tools": ["files.*"]}'), "names no server"),
        (
            ("create", "ci", "--grants", str(tmp_path / "none.json")),
            "cannot be read: No such file or directory; name a file",
        ),
        (("create", "A B"), "no name for a token"),
        (("revoke", "ci"), "There are none"),
    ):
        code, output, error = said(*wrong)
        assert (code, output) == (2, "") and why in error, error
    assert not (tmp_path / "s" / "tokens" / "ci.json").exists()
    code, output, error = said("create", "ci", "--expires", "2099-01-31", "--grants", '{"readOnly": true}')
    assert code == 0 and output.startswith("cellblock.ci.") and "mode 600" in error
    code, listed, _ = said("list")
    assert "ends 2099-01-31T00:00:00Z; with grants of its own" in listed and output.strip() not in listed
    assert json.loads(said("list", "--json")[1])[0]["grants"] == {"readOnly": True}
    assert "Did you mean ci?" in said("revoke", "cii")[2]
    assert said("create", "ci")[0] == 2 and said("revoke", "ci")[:2] == (0, "revoked ci\n")
