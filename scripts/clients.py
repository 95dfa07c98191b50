"""Runs real MCP clients against Cellblock and writes down what exactly their model would see.

    bash scripts/clients                            every client; some 2 minutes, and the installation before
    bash scripts/clients claude-code codex          only these
    bash scripts/clients --json seen.json codex     all that was recorded, too

Each client runs headless, with `cellblock serve --stdio` and the demo's servers behind it. A recorder on the loopback
(scripts/clients_model.py) stands in for the API of its model: it has the client call `codemode.run` twice, with a
script that succeeds and with one that fails, then ends the conversation. Libraries without a model run the two scripts
themselves; of them it counts what they hand to the program. Prints Markdown, the table of docs/clients.md.

- *tool*: its name as the model is given it. *description*, *instructions*: the characters of Cellblock's that
  arrive in the first request, of those sent. *servers*: ids and functions that are named in that description.
- *result*: which part of the tool's result arrives. *failure*: whether the error of a failed script arrives, and how.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from clients_model import Model, results_of, run_tool, texts
from clients_start import CLIENTS, SUCCEEDS, Client, Session, version

FAILS: Final = """import { get_issue } from "@codemode/servers/tracker";
globalThis.__codemode_result__ = await get_issue({ id: 9999 });"""
ERROR: Final = "There is no issue 9999"
SERVERS: Final = {
    "tracker": ("add_comment", "close_issue", "get_issue", "list_issues"),
    "local": ("capacity", "finish_date"),
}
Json = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(CLIENTS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was recorded")
    parsed = parser.parse_args(arguments)
    unknown = set(parsed.clients) - set(CLIENTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    found: list[Json] = []
    for name in parsed.clients or CLIENTS:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            found.append(recorded(name, CLIENTS[name]))
        except (OSError, subprocess.TimeoutExpired, ValueError) as error:
            found.append({"client": name, "failed": str(error)})
    if parsed.json:
        parsed.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    report(found)
    return 1 if any("failed" in each for each in found) else 0


def recorded(name: str, client: Client) -> Json:
    """What one client's model would see."""
    with tempfile.TemporaryDirectory(prefix="cellblock-clients-") as made, Model([SUCCEEDS, FAILS]) as model:
        session = Session(Path(made), model.url, (SUCCEEDS, FAILS))
        known_servers(session)
        said = client.start(session)
        shown = model.shown()
        if shown:
            # The description is the first request's: later ones may have more, the first script is written by this one.
            tool = cast("Json", run_tool(shown[0]))
            seen = {**tool, "all": "\n".join(texts(shown[0])), "results": results_of(shown[-1])}
        else:
            seen = handed_over(said)
        messages = [json.loads(line) for line in session.received.read_text().splitlines()]
        asked = [json.loads(line) for line in session.sent.read_text().splitlines()]
    return {
        "client": name,
        "package": client.package,
        "version": version(client),
        **introduced(asked),
        "requests": len(shown),
        "refused": sorted(set(model.refused)),
        **facts(seen, messages),
    }


def known_servers(session: Session) -> None:
    """Has Cellblock meet the servers once, as in any session but the very first."""
    command, arguments = session.server()
    subprocess.run([command, *arguments], input=b"", capture_output=True, timeout=60, check=True)
    script = session.folder / "first.js"
    script.write_text(SUCCEEDS, encoding="utf-8")
    run = [sys.executable, "-m", "cellblock.cli", "run", str(script)]
    run += ["--config", str(session.folder / "cellblock.json"), "--state-dir", str(session.folder / "state")]
    subprocess.run(run, capture_output=True, timeout=60, check=True)
    session.sent.unlink()
    session.received.unlink()


def handed_over(said: str) -> Json:
    """What a client without a model was given, by the last line that its program printed."""
    lines = said.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise ValueError(f"the client never showed the tool: {said[-600:]}")
    seen = json.loads(lines[-1])
    return {**seen, "namespace": None, "all": "\n".join(texts(seen))}


def introduced(asked: list[Json]) -> Json:
    """What the client calls itself, and the protocol that it ended with."""
    found: Json = {"name": None, "protocol": None}
    prefix = "io.modelcontextprotocol/"
    for message in asked:
        params = cast("Json", message.get("params") or {})
        meta = cast("Json", params.get("_meta") or {})
        info = params.get("clientInfo") or meta.get(f"{prefix}clientInfo")
        protocol = params.get("protocolVersion") or meta.get(f"{prefix}protocolVersion")
        found["name"] = info["name"] if info else found["name"]
        found["protocol"] = protocol or found["protocol"]
    return found


def facts(seen: Json, messages: list[Json]) -> Json:
    """What arrived, beside what Cellblock sent."""
    answers = [cast("Json", message["result"]) for message in messages if "result" in message]
    descriptions = [
        tool["description"] for each in answers for tool in each.get("tools", []) if "inputSchema" in tool
    ]
    instructions = next((each["instructions"] for each in answers if each.get("instructions")), "")
    sent = max(descriptions, key=lambda each: len(common(each, seen["description"])))
    runs = [each for each in answers if isinstance(each.get("structuredContent"), dict)]
    return {
        "tool": seen["name"],
        "namespace": seen["namespace"],
        "shown_description": seen["description"],
        "schema": seen["schema"],
        "description": [len(common(sent, seen["description"])), len(plain(sent))],
        "instructions": [arrived(instructions, seen["all"]), len(plain(instructions))],
        "servers": {
            server: [name for name in names if re.search(rf"\b{name}\b", seen["description"])]
            for server, names in SERVERS.items()
            if re.search(rf"\b{server}\b", seen["description"])
        },
        "results": [
            {**result, "form": form(result, run)} for result, run in zip(seen["results"], runs, strict=False)
        ],
    }


def plain(text: str) -> str:
    """A text without what clients do to its look: they indent it, and write dots for an ellipsis."""
    return re.sub(r"\n\s*", "\n", text.replace("...", "…"))


def common(one: str, other: str) -> str:
    """The beginning that two texts share."""
    return os.path.commonprefix([plain(one), plain(other)])  # noqa: RUF071 - texts, not paths


def arrived(text: str, within: str) -> int:
    """How many characters from the beginning of `text` are somewhere in `within`; none when its first words are not."""
    wanted, all_of_it = plain(text), plain(within)
    if wanted[:40] not in all_of_it:
        return 0
    low, high = 40, len(wanted)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if wanted[:middle] in all_of_it else (low, middle - 1)
    return low


def form(result: Json, run: Json) -> str:
    """Which part of the tool's result the model is given: its text, its structured content, or both."""
    text = cast("str", result["text"])
    structured = result.get("structured") == run["structuredContent"]
    if run["content"][0]["text"] in text:
        return "both" if structured else "text"
    try:
        same = json.loads(text[text.index("{") :]) == run["structuredContent"]
    except ValueError:
        same = False
    return "structured content" if same else "neither"


def report(found: list[Json]) -> None:
    """Prints what was found as Markdown."""
    print("| client | its name | protocol | tool | description | instructions | servers | result | failure |")
    print("|---|---|---|---|---|---|---|---|---|")
    for each in found:
        if "failed" in each:
            print(f"| {each['client']} | could not be run: {each['failed'][:200]!r} |" + " |" * 7)
            continue
        named = sum(map(len, each["servers"].values()))
        of = sum(map(len, SERVERS.values()))
        servers = f"{len(each['servers'])} of {len(SERVERS)}, functions {named} of {of}"
        succeeded, failed = each["results"]
        failure = "not seen"
        if ERROR in failed["text"]:
            failure = "marked, told" if failed["error"] else "told"
        tool = f"{each['namespace']} / {each['tool']}" if each["namespace"] else each["tool"]
        cells = [
            f"{each['client']} {each['version']}",
            f"`{each['name']}`",
            each["protocol"],
            f"`{tool}`",
            *(" of ".join(f"{count:,}" for count in each[key]) for key in ("description", "instructions")),
            servers,
            succeeded["form"],
            failure,
        ]
        print(f"| {' | '.join(cells)} |")
        if each["refused"]:
            print(f"{each['client']} wanted to reach {', '.join(each['refused'])}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
