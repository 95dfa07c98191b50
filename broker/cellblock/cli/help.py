"""Help holds examples and exit codes of every command: the end of its --help, and docs/cli.md."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

EXIT_OK: Final = 0
EXIT_NO: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 3

EXIT_CODES: Final = {
    0: "all went well",
    1: "what was asked for is not as it should be; see the command",
    2: "wrong usage or configuration; the message says what to correct",
    3: "Cellblock itself could not start, a running daemon cannot be reached, or the output cannot be written",
    130: "ended by SIGINT (Ctrl-C)",
    141: "whoever reads the output has gone, as by SIGPIPE",
    143: "ended by SIGTERM",
}
"""Says what exit codes mean everywhere."""

ONE_MEANS: Final = {
    "run": "the script ended with an error diagnostic",
    "approve": "tools differ from their pins, and none was approved",
    "doctor": "there is a problem",
    "config check": "the file has errors",
    "auth status": "there is no login of SERVER that can be used",
    "demo": "the demo's script failed",
}
"""Says what 1 means where a command gives it."""

EXAMPLES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "": (
        ("cellblock demo", "see it work"),
        ("cellblock import", "take over the servers of your editor"),
        (
            "claude mcp add cellblock -- cellblock serve --config ~/cellblock.json",
            "put it behind Claude Code",
        ),
    ),
    "run": (
        ("cellblock run script.js --config cellblock.json", "a file"),
        (
            "cellblock run - --config cellblock.json --timeout-ms 5000 --require time < script.ts",
            "standard input, with a limit",
        ),
        ("cellblock run script.js --config cellblock.json | jq .result", "the response is JSON"),
        (
            'cellblock run script.js --config cellblock.json --grants \'{"budgets": {"files.*": 20}}\'',
            "with at most so many calls",
        ),
    ),
    "serve": (
        ("cellblock serve --config cellblock.json", "over stdio, for an editor that starts it"),
        ("cellblock serve --http --config cellblock.json", "a daemon for several editors"),
        ("cellblock serve --http 192.0.2.7:7433 --tls-cert cert.pem --tls-key key.pem", "for other machines"),
    ),
    "dashboard": (("cellblock dashboard --no-open", "prints the address to open"),),
    "top": (
        ("cellblock top", "until q is pressed; ? shows the keys"),
        ("cellblock top --once --json | jq .pool", "for machines"),
    ),
    "auth": (("cellblock auth login wiki --config cellblock.json", "log in to a server"),),
    "auth login": (
        ("cellblock auth login wiki --config cellblock.json", "in a browser"),
        ("cellblock auth login wiki --no-browser --config cellblock.json", "prints the address to open"),
    ),
    "auth status": (("cellblock auth status --config cellblock.json --json", "all servers with a url"),),
    "auth logout": (
        ("cellblock auth logout wiki --config cellblock.json", "forgets the login, here and at the server"),
    ),
    "connect": (
        ("claude mcp add cellblock -- cellblock connect", "in an editor"),
        (
            "cellblock connect --url https://cellblock.example.com/mcp --token-file token",
            "to another machine",
        ),
    ),
    "service": (
        (
            "cellblock service --systemd --config ~/cellblock.json > ~/.config/systemd/user/cellblock.service",
            "Linux",
        ),
        ("cellblock service --launchd > ~/Library/LaunchAgents/cellblock.plist", "macOS"),
    ),
    "types": (
        ("cellblock types files --config cellblock.json > servers.d.ts", "one server, for an editor"),
        ("cellblock types --config cellblock.json --json", "all, by server"),
    ),
    "search": (
        ('cellblock search "open issues" --config cellblock.json', "by what a tool does"),
        ("cellblock search read --server files --limit 3 --config cellblock.json --json", "for machines"),
        ("cellblock search read --types --config cellblock.json", "as declarations"),
    ),
    "inspect": (
        ("cellblock inspect files.read_file --config cellblock.json", "by server and tool"),
        ("cellblock inspect mcp__files__read_file --config cellblock.json --json", "by its name in MCP"),
    ),
    "approve": (
        ("cellblock approve files --show --config cellblock.json", "what differs"),
        ("cellblock approve files read_file --config cellblock.json", "approve one tool"),
        ("cellblock approve files --all --config cellblock.json", "approve all that differ"),
    ),
    "schemas": (("cellblock schemas export --config cellblock.json", "what is known of all outputs"),),
    "schemas init": (("cellblock schemas init files --config cellblock.json", "an overlay to fill in"),),
    "schemas export": (
        ("cellblock schemas export files --config cellblock.json > files.json", "one server"),
    ),
    "schemas diff": (
        ("cellblock schemas diff files read_file --config cellblock.json", "how its results have changed"),
    ),
    "schemas clear": (
        ("cellblock schemas clear files read_file --config cellblock.json", "forget one tool"),
        ("cellblock schemas clear", "forget everything"),
    ),
    "config": (("cellblock config check --config cellblock.json", "all errors, with line and column"),),
    "config check": (
        ("cellblock config check --config cellblock.json", "all errors, with line and column"),
        ("cellblock config check --config ~/.cursor/mcp.json --json", "another client's file, for machines"),
    ),
    "import": (
        ("cellblock import --dry-run", "what would be done"),
        (
            "cellblock import --from cursor --from vscode --config cellblock.json",
            "two clients, into this file",
        ),
        ("cellblock import --yes --copy-secrets", "everything, secrets too, without a question"),
    ),
    "doctor": (
        ("cellblock doctor --config cellblock.json", "before you ask anyone"),
        ("cellblock doctor --tls-cert cert.pem --tls-key key.pem", "and this certificate"),
        ("cellblock doctor --json", "for machines"),
    ),
    "keygen": (("cellblock keygen ~/.config/cellblock/broker.key", "for hosts on other machines"),),
    "demo": (("cellblock demo", "needs no configuration"),),
    "completion": (
        ("cellblock completion bash > ~/.local/share/bash-completion/completions/cellblock", "bash"),
        ("cellblock completion zsh > ~/.zfunc/_cellblock", "zsh, when ~/.zfunc is in fpath"),
        ("cellblock completion fish > ~/.config/fish/completions/cellblock.fish", "fish"),
    ),
}
"""Shows command lines that do something, and what. The tests parse each."""


def all_commands(
    parser: argparse.ArgumentParser, path: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields every command by its words, `config check` for example; the program itself is the empty text."""
    yield path, parser
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            choices: dict[str, Any] = action.choices  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            for name, below in choices.items():
                yield from all_commands(below, f"{path} {name}".strip())


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps a description of one line, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def finish(parser: argparse.ArgumentParser) -> None:
    """Puts examples and exit codes at the end of every command's help."""
    for path, command in all_commands(parser):
        examples = EXAMPLES.get(path)
        if examples is None:
            continue
        command.formatter_class = Formatter
        shown = "\n".join(f"  {line}\n      {meaning}" for line, meaning in examples)
        codes = "\n".join(f"  {code:<4} {meaning}" for code, meaning in exit_codes(path).items())
        command.epilog = f"examples:\n{shown}\n\nexit codes:\n{codes}"


def exit_codes(path: str) -> dict[int, str]:
    """Returns the exit codes of a command; of the program itself: what they mean everywhere."""
    if not path:
        return dict(EXIT_CODES)
    one = {1: ONE_MEANS[path]} if path in ONE_MEANS else {}
    return {0: EXIT_CODES[0], **one, **{code: EXIT_CODES[code] for code in (2, 3)}}
