#!/usr/bin/env python3
"""Regenerate tests/fixtures/search/catalogs/*.json: the tool lists that only the search's measurement reads.

They widen the recorded catalogs of `dump_catalogs.py`, whose installing and asking they share, to the
size at which search decides. Only what names and describes a tool is kept: no types, no constraints.
Those of FRESH go to another folder, as they came later: `measure_search.py --fresh` says what for.

    python scripts/dump_search_catalogs.py              # all of them
    python scripts/dump_search_catalogs.py xero         # one

Needs npm and node for the npm packages. Exit status 1 if any server failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from dump_catalogs import ROOT, Source, dump, install

SOURCES = (
    Source(
        "hubspot",
        "npm",
        "@hubspot/mcp-server",
        "0.4.0",
        "mcp-hubspot",
        env={"PRIVATE_APP_ACCESS_TOKEN": "dummy"},
    ),
    Source(
        "airtable",
        "npm",
        "airtable-mcp-server",
        "1.14.0",
        "airtable-mcp-server",
        env={"AIRTABLE_API_KEY": "dummy"},
    ),
    Source("kubernetes", "npm", "mcp-server-kubernetes", "4.1.7", "mcp-server-kubernetes"),
    Source("todoist", "npm", "@doist/todoist-mcp", "11.0.0", "todoist-mcp", env={"TODOIST_API_KEY": "dummy"}),
    Source(
        "calendar",
        "npm",
        "@cocal/google-calendar-mcp",
        "2.6.3",
        "google-calendar-mcp",
        env={"GOOGLE_OAUTH_CREDENTIALS": "{tmp}/credentials.json"},
    ),
    Source(
        "xero",
        "npm",
        "@xeroapi/xero-mcp-server",
        "0.0.17",
        "xero-mcp-server",
        env={"XERO_CLIENT_BEARER_TOKEN": "dummy"},
    ),
    Source(
        "mongodb",
        "npm",
        "mongodb-mcp-server",
        "3.0.4",
        "mongodb-mcp-server",
        ("--telemetry", "disabled"),
    ),
    Source(
        "atlassian",
        "pypi",
        "mcp-atlassian",
        "0.23.1",
        "mcp-atlassian",
        env={
            "JIRA_URL": "https://example.invalid",
            "JIRA_USERNAME": "a@example.invalid",
            "JIRA_API_TOKEN": "dummy",
            "CONFLUENCE_URL": "https://example.invalid/wiki",
            "CONFLUENCE_USERNAME": "a@example.invalid",
            "CONFLUENCE_API_TOKEN": "dummy",
        },
    ),
    Source(
        "stripe",
        "npm",
        "@stripe/mcp",
        "0.2.5",
        "mcp",
        ("--tools=all",),
        env={"STRIPE_SECRET_KEY": "sk_test_dummy"},
    ),
    Source(
        "firecrawl", "npm", "firecrawl-mcp", "3.22.2", "firecrawl-mcp", env={"FIRECRAWL_API_KEY": "dummy"}
    ),
    Source(
        "circleci",
        "npm",
        "@circleci/mcp-server-circleci",
        "0.20.0",
        "mcp-server-circleci",
        env={"CIRCLECI_TOKEN": "dummy"},
    ),
    Source("obsidian", "pypi", "mcp-obsidian", "0.2.3", "mcp-obsidian", env={"OBSIDIAN_API_KEY": "dummy"}),
    Source(
        "trello",
        "npm",
        "@delorenj/mcp-server-trello",
        "1.8.1",
        "mcp-server-trello",
        env={"TRELLO_API_KEY": "dummy", "TRELLO_TOKEN": "dummy"},
    ),
    Source(
        "gmail",
        "npm",
        "@gongrzhe/server-gmail-autoauth-mcp",
        "1.1.11",
        "gmail-mcp",
        env={"GMAIL_OAUTH_PATH": "{tmp}/credentials.json", "GMAIL_CREDENTIALS_PATH": "{tmp}/none.json"},
    ),
    Source("excel", "pypi", "excel-mcp-server", "2.2.2", "excel-mcp-server", ("stdio",)),
)
FRESH = frozenset({"stripe", "firecrawl", "circleci", "obsidian", "trello", "gmail"})
_CREDENTIALS = {
    "installed": {"client_id": "dummy", "client_secret": "dummy", "redirect_uris": ["http://localhost"]}
}
"""An OAuth client that no service knows: the calendar server lists its tools only with one."""


def slim(document: dict[str, Any]) -> dict[str, Any]:
    """The document with only the names and descriptions of its tools and of their parameters."""
    tools: list[dict[str, Any]] = []
    for tool in document["tools"]:
        properties: dict[str, Any] = tool["inputSchema"].get("properties", {})
        kept: dict[str, Any] = {name: tool[name] for name in ("name", "title", "description") if name in tool}
        kept["inputSchema"] = {
            "type": "object",
            "properties": {
                name: {"description": schema["description"]} if "description" in schema else {}
                for name, schema in properties.items()
            },
        }
        tools.append(kept)
    server = {name: document["server"].get(name) for name in ("name", "version")}
    return {"server": server, "package": document["package"], "tools": tools}


def main() -> int:
    """Dump the servers named on the command line (default: all). Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *(source.name for source in SOURCES)])
    parser.add_argument("--install-dir", type=Path, default=ROOT / ".servers" / "search")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "fixtures" / "search")
    options = parser.parse_args()
    out: Path = options.out
    installs: Path = options.install_dir.resolve()
    failed = 0
    for source in SOURCES:
        if options.names and source.name not in options.names:
            continue
        try:
            executable = install(source, installs)
            scratch = installs / source.name / "scratch"
            scratch.mkdir(parents=True, exist_ok=True)
            (scratch / "credentials.json").write_text(json.dumps(_CREDENTIALS), encoding="utf-8")
            for name, value in source.env.items():
                source.env[name] = value.replace("{tmp}", str(scratch))
            document = slim(asyncio.run(dump(source, executable, scratch)))
        except Exception as error:  # noqa: BLE001 - one broken server must not lose the others
            failed += 1
            print(f"{source.name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        folder = out / ("fresh_catalogs" if source.name in FRESH else "catalogs")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{source.name}.json").write_text(text, encoding="utf-8")
        print(f"{source.name}: {len(document['tools'])} tools, {len(text.encode()) / 1024:.0f} KiB")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
