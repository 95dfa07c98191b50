#!/usr/bin/env python3
"""Regenerate tests/fixtures/search/catalogs/*.json: the tool lists that only the search's measurement reads.

They widen the recorded catalogs of `dump_catalogs.py`, whose installing and asking they share, to the
size at which search decides. Only what names and describes a tool is kept: no types, no constraints.
Some came later and go to other folders: `scripts/bench search --help` says what for (`--fresh`, `--outside`).

    python scripts/dump_search_catalogs.py              # all of them
    python scripts/dump_search_catalogs.py xero         # one

Needs npm and node for the npm packages. Exit status 1 if any server failed.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from dump_catalogs import Source, main

# An OAuth client that no service knows: two servers list their tools only with one.
CREDENTIALS: Final = {
    "credentials.json": json.dumps(
        {"installed": {"client_id": "dummy", "client_secret": "dummy", "redirect_uris": ["http://localhost"]}}
    )
}
OTHERS: Final = "search/catalogs"
FRESH: Final = "search/fresh_catalogs"
OUTSIDE: Final = "search/outside_catalogs"

SOURCES = (
    Source(
        "hubspot",
        "npm",
        "@hubspot/mcp-server",
        "0.4.0",
        "mcp-hubspot",
        env={"PRIVATE_APP_ACCESS_TOKEN": "dummy"},
        folder=OTHERS,
    ),
    Source(
        "airtable",
        "npm",
        "airtable-mcp-server",
        "1.14.0",
        "airtable-mcp-server",
        env={"AIRTABLE_API_KEY": "dummy"},
        folder=OTHERS,
    ),
    Source("kubernetes", "npm", "mcp-server-kubernetes", "4.1.7", "mcp-server-kubernetes", folder=OTHERS),
    Source(
        "todoist",
        "npm",
        "@doist/todoist-mcp",
        "11.0.0",
        "todoist-mcp",
        env={"TODOIST_API_KEY": "dummy"},
        folder=OTHERS,
    ),
    Source(
        "calendar",
        "npm",
        "@cocal/google-calendar-mcp",
        "2.6.3",
        "google-calendar-mcp",
        env={"GOOGLE_OAUTH_CREDENTIALS": "{tmp}/credentials.json"},
        files=CREDENTIALS,
        folder=OTHERS,
    ),
    Source(
        "xero",
        "npm",
        "@xeroapi/xero-mcp-server",
        "0.0.17",
        "xero-mcp-server",
        env={"XERO_CLIENT_BEARER_TOKEN": "dummy"},
        folder=OTHERS,
    ),
    Source(
        "mongodb",
        "npm",
        "mongodb-mcp-server",
        "3.0.4",
        "mongodb-mcp-server",
        ("--telemetry", "disabled"),
        folder=OTHERS,
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
        folder=OTHERS,
    ),
    Source(
        "stripe",
        "npm",
        "@stripe/mcp",
        "0.2.5",
        "mcp",
        ("--tools=all",),
        env={"STRIPE_SECRET_KEY": "sk_test_dummy"},
        folder=FRESH,
    ),
    Source(
        "firecrawl",
        "npm",
        "firecrawl-mcp",
        "3.22.2",
        "firecrawl-mcp",
        env={"FIRECRAWL_API_KEY": "dummy"},
        folder=FRESH,
    ),
    Source(
        "circleci",
        "npm",
        "@circleci/mcp-server-circleci",
        "0.20.0",
        "mcp-server-circleci",
        env={"CIRCLECI_TOKEN": "dummy"},
        folder=FRESH,
    ),
    Source(
        "obsidian",
        "pypi",
        "mcp-obsidian",
        "0.2.3",
        "mcp-obsidian",
        env={"OBSIDIAN_API_KEY": "dummy"},
        folder=FRESH,
    ),
    Source(
        "trello",
        "npm",
        "@delorenj/mcp-server-trello",
        "1.8.1",
        "mcp-server-trello",
        env={"TRELLO_API_KEY": "dummy", "TRELLO_TOKEN": "dummy"},
        folder=FRESH,
    ),
    Source(
        "gmail",
        "npm",
        "@gongrzhe/server-gmail-autoauth-mcp",
        "1.1.11",
        "gmail-mcp",
        env={"GMAIL_OAUTH_PATH": "{tmp}/credentials.json", "GMAIL_CREDENTIALS_PATH": "{tmp}/none.json"},
        files=CREDENTIALS,
        folder=FRESH,
    ),
    Source(
        "gitlab",
        "npm",
        "@zereight/mcp-gitlab",
        "2.1.64",
        "mcp-gitlab",
        env={"GITLAB_PERSONAL_ACCESS_TOKEN": "dummy"},
        folder=OUTSIDE,
    ),
    Source(
        "asana",
        "npm",
        "@roychri/mcp-server-asana",
        "1.8.0",
        "mcp-server-asana",
        env={"ASANA_ACCESS_TOKEN": "dummy"},
        folder=OUTSIDE,
    ),
    Source(
        "monday",
        "npm",
        "@mondaydotcomorg/monday-api-mcp",
        "3.3.0",
        "mcp-server-monday-api",
        ("-t", "dummy"),
        folder=OUTSIDE,
    ),
    Source(
        "mapbox",
        "npm",
        "@mapbox/mcp-server",
        "0.14.0",
        "mcp-server",
        env={"MAPBOX_ACCESS_TOKEN": "pk.e30.dummy"},
        folder=OUTSIDE,
    ),
    Source(
        "elasticsearch",
        "npm",
        "@elastic/mcp-server-elasticsearch",
        "0.3.1",
        "mcp-server-elasticsearch",
        env={"ES_URL": "http://localhost:9", "ES_API_KEY": "dummy"},
        folder=OUTSIDE,
    ),
    Source(
        "line",
        "npm",
        "@line/line-bot-mcp-server",
        "0.5.0",
        "line-bot-mcp-server",
        env={"CHANNEL_ACCESS_TOKEN": "dummy", "DESTINATION_USER_ID": "U0"},
        folder=OUTSIDE,
    ),
    Source(
        "launchdarkly",
        "npm",
        "@launchdarkly/mcp-server",
        "0.6.2",
        "mcp",
        ("start", "--api-key", "dummy"),
        folder=OUTSIDE,
    ),
    Source(
        "desktop-commander",
        "npm",
        "@wonderwhy-er/desktop-commander",
        "0.2.52",
        "desktop-commander",
        folder=OUTSIDE,
    ),
    Source(
        "exa",
        "npm",
        "exa-mcp-server",
        "3.4.1",
        "exa-mcp-server",
        env={"EXA_API_KEY": "dummy"},
        folder=OUTSIDE,
    ),
    Source(
        "redis",
        "pypi",
        "redis-mcp-server",
        "0.5.1",
        "redis-mcp-server",
        ("--url", "redis://127.0.0.1:9/0"),
        folder=OUTSIDE,
    ),
    Source(
        "clickhouse",
        "pypi",
        "mcp-clickhouse",
        "0.7.0",
        "mcp-clickhouse",
        env={"CLICKHOUSE_HOST": "localhost", "CLICKHOUSE_USER": "dummy", "CLICKHOUSE_PASSWORD": "dummy"},
        folder=OUTSIDE,
    ),
    Source("arxiv", "pypi", "arxiv-mcp-server", "0.8.2", "arxiv-mcp-server", folder=OUTSIDE),
    Source(
        "zotero",
        "pypi",
        "zotero-mcp-server",
        "0.15.1",
        "zotero-mcp",
        ("serve",),
        env={"ZOTERO_API_KEY": "dummy", "ZOTERO_LIBRARY_ID": "1"},
        folder=OUTSIDE,
    ),
    Source("excel", "pypi", "excel-mcp-server", "2.2.2", "excel-mcp-server", ("stdio",), folder=OTHERS),
)


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


if __name__ == "__main__":
    sys.exit(main(SOURCES, __doc__ or "", shape=slim))
