"""Cellblock as the client that the MCP conformance suite tests: what `scripts/mcp_conformance` gives it as command.

Run as ``python upstream_client.py URL`` with the scenario's name in `MCP_CONFORMANCE_SCENARIO` and its context (JSON)
in `MCP_CONFORMANCE_CONTEXT`. The suite's server becomes an upstream of a real broker. Where the scenario has a login,
`cellblock auth login` is run with a browser that follows redirects; then a script calls every tool with numbers for
what it asks for. A refused call is answered with another login, once, as a person would: with the scopes that the
error names in the configuration. A scenario in which the user is asked goes through `cellblock serve --stdio` and a
client that fills forms with their defaults.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters

CELLBLOCK = Path(sys.executable).parent / "cellblock"
BROWSER = Path(__file__).resolve().parent.parent / "servers" / "browser.py"
METADATA_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The client id metadata document of the suite's own example client, which its authorization server knows."""

NEEDED_SCOPES = re.compile(r"insufficient_scope: it needs ([^;]+);")
"""What Cellblock says of a login that does not reach far enough."""

CODE = """
import * as suite from "@codemode/servers/suite";
const answers = [];
for (const call of Object.values(suite)) {
  if (typeof call === "function") answers.push(await call({ a: 5, b: 3 }));
}
globalThis.__codemode_result__ = answers;
"""


def issuer_of(url: str) -> str:
    """The authorization server that a protected server names: where a person would have registered a client."""
    place = urlsplit(url)
    named = f"{place.scheme}://{place.netloc}/.well-known/oauth-protected-resource{place.path}"
    with httpx2.Client(trust_env=False, verify=False, timeout=120) as http:
        return http.get(named).json()["authorization_servers"][0]


def auth_section(scenario: str, context: dict[str, Any], url: str) -> dict[str, Any]:
    """What a person would configure for a scenario, from what the suite says beforehand."""
    own: dict[str, Any] = {}
    if "client_id" in context:
        own["client_id"] = context["client_id"]
    if "client_secret" in context:
        own |= {"client_secret": context["client_secret"], "issuer": issuer_of(url)}
    if "private_key_pem" in context:
        own |= {
            "client_auth_method": "private_key_jwt",
            "client_secret": context["private_key_pem"],
            "issuer": issuer_of(url),
        }
    if "client-credentials" in scenario:
        own["grant"] = "client_credentials"
    if scenario == "auth/basic-cimd":
        own["client_id"] = METADATA_DOCUMENT
    return {"keyring": "off", "servers": {"suite": own} if own else {}}


def cellblock(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end; all it says is shown on stderr too."""
    options = ["--config", str(folder / "cellblock.json"), "--state-dir", str(folder / "state")]
    browser = f"{sys.executable} {BROWSER} {folder / 'browser.jsonl'} allow %s"
    done = subprocess.run(
        [str(CELLBLOCK), *arguments, *options],
        env={**os.environ, "BROWSER": browser},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    sys.stderr.write(f"$ cellblock {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done


def defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """What a form holds that nobody has changed."""
    fields: dict[str, dict[str, Any]] = schema.get("properties", {})
    return {name: field["default"] for name, field in fields.items() if "default" in field}


async def with_a_user(folder: Path) -> int:
    """One run for a client whose user agrees to everything."""

    async def agree(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content=defaults(params.requested_schema))

    options = ["--config", str(folder / "cellblock.json"), "--state-dir", str(folder / "state")]
    server = StdioServerParameters(command=str(CELLBLOCK), args=["serve", "--stdio", *options])
    async with Client(server, mode="legacy", elicitation_callback=agree) as client:
        result = await client.call_tool("codemode.run", {"code": CODE})
    response: dict[str, Any] = result.structured_content or {}
    sys.stderr.write(json.dumps(response) + "\n")
    return 1 if response.get("diagnostics") else 0


def main(url: str) -> int:
    """One scenario. Returns the exit code."""
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config: dict[str, Any] = {
            "mcpServers": {"suite": {"url": url}},
            "cellblock": {"auth": auth_section(scenario, context, url)},
        }
        (folder / "cellblock.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / "script.js").write_text(CODE, encoding="utf-8")
        if "elicitation" in scenario:
            return asyncio.run(with_a_user(folder))
        if scenario.startswith("auth/") and cellblock(folder, "auth", "login", "suite").returncode != 0:
            return 1
        run = cellblock(folder, "run", str(folder / "script.js"))
        if run.returncode != 0 and scenario.startswith("auth/"):
            if needed := NEEDED_SCOPES.search(run.stdout):
                config["cellblock"]["auth"]["servers"].setdefault("suite", {})["scopes"] = needed[1].split()
                (folder / "cellblock.json").write_text(json.dumps(config), encoding="utf-8")
            if cellblock(folder, "auth", "login", "suite").returncode != 0:
                return 1
            run = cellblock(folder, "run", str(folder / "script.js"))
        return run.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
