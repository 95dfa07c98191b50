"""Help holds the words of every command, for --help and docs/cli.md: what it does, examples, exit codes."""

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


class Help:
    """Holds the words of one command.

    Args:
        meaning: One line in the list of commands.
        description: Sentences at the beginning of its --help.
        examples: Command lines that do something, each with what it does after two spaces and `#`.
        one: What exit code 1 means, where the command gives it.
    """

    def __init__(self, meaning: str, description: str, *examples: str, one: str | None = None) -> None:
        self.meaning = meaning
        self.description = description
        self.examples = [tuple(example.rsplit("  # ", 1)) for example in examples]
        self.one = one


GROUPS: Final = {
    "run": ("run", "record", "replay", "save", "scripts", "test", "types", "search", "inspect"),
    "servers": (
        *("add", "remove", "enable", "disable", "auth", "secret", "pins", "schemas"),
        *("status", "restart", "logs"),
    ),
    "clients": ("install", "import", "connect", "token"),
    "runs": ("runs", "flows", "dashboard"),
    "operate": ("serve", "stop", "service", "config", "doctor", "keygen", "demo", "completion", "help"),
}
"""Maps what a person wants to do to the commands for it."""

HELP: Final = {
    "": Help(
        "",
        "Runs an agent's JavaScript against MCP servers, in a process that can touch nothing.",
        "cellblock demo  # see it work",
        "cellblock import  # take over the servers of your editor",
        "cellblock install claude-code --take-over  # put it and its servers behind Claude Code",
    ),
    "run": Help(
        "run one script and print the response as JSON",
        "Runs one script and prints the codemode.run response as JSON. On a terminal you are asked about calls that "
        "the policy wants approved, unless the script comes from standard input. A terminal, and whoever reads of an "
        "error, is told on standard error which configuration was used.",
        "cellblock run script.js --config cellblock.json  # a file",
        "cellblock run - --config cellblock.json --timeout-ms 5000 --require time < script.ts  # standard input, with"
        " a limit",
        "cellblock run script.js --config cellblock.json | jq .result  # the response is JSON",
        'cellblock run script.js --config cellblock.json --grants \'{"budgets": {"files.*": 20}}\'  # with at most so '
        "many calls",
        one="the script ended with an error diagnostic",
    ),
    "record": Help(
        "run one script and write down all that it saw",
        "Runs one script as `run` does, prints its response, and writes a recording: the script, its calls and their "
        "answers, clock, randomness and timers. What looks like a secret is taken out; the file is its owner's alone.",
        "cellblock record script.js -o run.cellrun --config cellblock.json  # a run that failed can be looked at again",
        one="the script ended with an error diagnostic (it is recorded all the same), or nothing could be recorded",
    ),
    "replay": Help(
        "run a recording again, offline",
        "Runs the recorded script in a worker, to the recorded outcome: no server is started and no tool is called, "
        "unless --live-on-miss says so. "
        "Prints the response, and under `replay` whether it is the recorded one.",
        "cellblock replay run.cellrun  # the same response, or where it differs",
        "cellblock replay 5f1c0a9be2d34c77  # of a run that is kept: see `cellblock runs list`",
        "cellblock replay run.cellrun --trace | jq .replay.trace  # which call was made where",
        "cellblock replay run.cellrun --until 3  # what was logged before the third call",
        "cellblock replay run.cellrun --script fixed.js  # try a change against the recorded answers",
        "cellblock replay run.cellrun --script fixed.js --live-on-miss --yes --config cellblock.json  # make new calls",
        one="the response is not the recorded one, or the script that was tried failed",
    ),
    "save": Help(
        "keep the script of a run, to be run again",
        "Makes a file in `scripts.dir` of the script of a run that ended well, with its parameters, its schemas, and "
        "the tools that it may call; and keeps the recording, encrypted, as its test. With --input, runs a script, "
        "live, and keeps it if it ends well. Nothing runs before `scripts approve`.",
        "cellblock save 5f1c0a9be2d34c77 weekly_report --param since=2026-11-02  # a kept run, with one parameter",
        "cellblock save run.cellrun weekly_report --description 'Issues since a day, by state.'  # a recording",
        """cellblock save report.js weekly_report --input '{"since": "2026-11-02"}'  # a script that has an `input`""",
        one="the script failed, and nothing is kept",
    ),
    "scripts": Help(
        "list, review and approve kept scripts",
        "A version of a kept script runs when a person has approved it here. What runs is the approved text, whatever "
        "becomes of the file.",
        "cellblock scripts list  # all of them",
        "cellblock scripts approve weekly_report  # shows what is new, and asks",
    ),
    "scripts list": Help(
        "list kept scripts, and who has approved which version",
        "Lists the files in `scripts.dir` and the approved versions.",
        "cellblock scripts list --json  # for machines",
    ),
    "scripts approve": Help(
        "let a version of a script run",
        "Shows the file as a difference to the version before, and asks. Without a terminal, --digest names the "
        "version that was reviewed.",
        "cellblock scripts approve weekly_report  # asks",
        "cellblock scripts approve weekly_report --digest sha256:9f86d081…  # this version, and no other",
        one="it was not approved",
    ),
    "scripts remove": Help(
        "let a script run no more",
        "Takes the approval of scripts back. Their files and their recordings stay.",
        "cellblock scripts remove weekly_report  # it does not run any more",
    ),
    "test": Help(
        "say whether kept scripts still work",
        "Replays each script against its recording, offline; then connects to the servers that it calls, and holds its "
        "recorded inputs and results, and the script itself, against their schemas as they are now. Calls no tool, "
        "unless --input says so. docs/scripts.md has what counts as a change.",
        "cellblock test  # all kept scripts",
        "cellblock test weekly_report --json  # one, for machines",
        "cellblock test weekly_report --offline  # the replay alone",
        """cellblock test weekly_report --input '{"since": "2026-11-09"}'  # with a second input, live, after a yes""",
        one="a script is changed or broken",
    ),
    "serve": Help(
        "be an MCP server with the tool codemode.run",
        "Serves MCP clients: one tool, codemode.run; with the profile `extended` also search_tools, inspect_tool and "
        "list_servers. Started by hand, on a terminal, it says how to put it into an editor. The profile `proxy` runs "
        "no scripts: it passes the servers' tools through, one by one.",
        "cellblock serve --config cellblock.json  # over stdio, for an editor that starts it",
        "cellblock serve --http --config cellblock.json  # a daemon for several editors",
        "cellblock serve --http 192.0.2.7:7433 --tls-cert cert.pem --tls-key key.pem  # for other machines",
    ),
    "connect": Help(
        "be the stdio end of a daemon, which is started where none runs",
        "Relays MCP between standard input and output and a daemon, so that several editors share its workers and its"
        " upstream servers. Where none runs on this machine it starts one, which ends when nobody has used it for"
        " 30 minutes.",
        "cellblock connect  # what an editor starts",
        "cellblock connect --url http://127.0.0.1:7434/mcp --config work.json  # a second daemon, of another"
        " configuration",
        "cellblock connect --url https://cellblock.example.com/mcp --token-file token  # to another machine",
    ),
    "service": Help(
        "print a systemd unit or a launchd plist that runs the daemon",
        "Prints what makes `cellblock serve --http` a service of the user, and where to put it.",
        "cellblock service --systemd --config ~/cellblock.json > ~/.config/systemd/user/cellblock.service  # Linux",
        "cellblock service --launchd > ~/Library/LaunchAgents/cellblock.plist  # macOS",
    ),
    "token": Help(
        "make, list and revoke named tokens for the clients of a daemon",
        "Named tokens let clients of `cellblock serve --http` in, each under a name of its own, which the policy, the "
        "logs and the dashboard know. A running daemon sees a new or revoked one at once.",
        "cellblock token create ann --expires 30d  # prints the token",
    ),
    "token create": Help(
        "make a token and print it, once",
        "Makes a token and prints it. Only a hash of it is kept. Its holder is the client token:NAME of the policy, "
        "and --grants takes away from what the policy grants that client.",
        "cellblock token create ci --expires 30d > ci.token  # into a file; then chmod 600 ci.token",
        "cellblock token create reader --grants '{\"readOnly\": true}'  # for a client that is to change nothing",
    ),
    "token list": Help(
        "list the named tokens",
        "Lists names, ends and grants of the named tokens, and those that are not accepted, with the reason.",
        "cellblock token list  # nobody can list the tokens themselves",
        "cellblock token list --json  # for machines",
    ),
    "token revoke": Help(
        "let the holder of a named token in no more",
        "Revokes a named token: each later request with it is refused. A run in flight ends by itself.",
        "cellblock token revoke ci  # at once, without a restart",
        "cellblock token revoke reader --everything  # its holder has left",
    ),
    "dashboard": Help(
        "open the page of a running daemon in the browser",
        "Prints a URL that is good for one login within a minute, and opens it in the browser where there is one. The"
        " daemon is a `cellblock serve --http`.",
        "cellblock dashboard --no-open  # prints the address to open",
    ),
    "flows": Help(
        "look at what principals' models have read, and forget it",
        "With `cellblock.policy.flows`, a run begins with what its principal has read before.",
        "cellblock flows list  # who knows what",
    ),
    "flows list": Help(
        "print what principals' models have read",
        "Prints, of each principal, whether what its models have read is private and untrusted, and since when.",
        "cellblock flows list --json  # for machines",
    ),
    "flows reset": Help(
        "forget what principals' models have read",
        "Forgets what was read: for a model that no longer knows it, such as in a new conversation.",
        "cellblock flows reset --principal token:ci  # of one client",
    ),
    "runs": Help(
        "look at runs that are kept or wait for you, and let them go on",
        "Works with the runs that `cellblock.journal` has written down in the state directory, whoever's they are.",
        "cellblock runs list --parked  # which wait for you",
    ),
    "runs list": Help(
        "print which runs are kept",
        "Prints which runs are kept, the newest first: when they began, how they ended, whose they are.",
        "cellblock runs list  # the last 20",
        "cellblock runs list --client token:ci --limit 100 --json  # of one client, for machines",
    ),
    "runs show": Help(
        "show one run that is kept",
        "Shows one run: its timeline, calls and diagnostics. What its script said and saw is shown with --values "
        "alone, without the secrets of the configuration.",
        "cellblock runs show 5f1c0a9be2d34c77  # what happened when",
        "cellblock runs show 5f1c0a9be2d34c77 --values --json  # all that is kept, for machines",
    ),
    "runs approve": Help(
        "allow the calls that a parked run waits for",
        "Allows calls of a run that waits, and answers what servers ask during calls. When all of them are answered, a "
        "daemon of the state directory goes on with the run.",
        "cellblock runs approve 5f1c0a9be2d34c77  # all calls that it waits for",
        """cellblock runs approve 5f1c0a9be2d34c77 --answer '{"name": "Ann"}'  # what a server asks in a form""",
        "cellblock runs approve 5f1c0a9be2d34c77 --call 3  # one of them: `cellblock runs show` has the numbers",
        "cellblock runs approve 5f1c0a9be2d34c77 --always  # and calls like them (docs/howto-flows.md)",
    ),
    "runs deny": Help(
        "refuse the calls that a parked run waits for",
        "Refuses calls of a run that waits. They are not made; the script is told so, and goes on.",
        "cellblock runs deny 5f1c0a9be2d34c77  # all calls that it waits for",
    ),
    "runs cancel": Help(
        "end a parked run",
        "Ends a run that waits. Its calls are not made, and its script does not go on.",
        "cellblock runs cancel 5f1c0a9be2d34c77  # what is kept of it stays until it is too old",
    ),
    "runs resume": Help(
        "go on with a parked run here, without a daemon",
        "Goes on with a run that has its answers, in this process, and prints its response as `cellblock run` does.",
        "cellblock runs resume 5f1c0a9be2d34c77 --config cellblock.json  # after `cellblock runs approve`",
        one="the script failed",
    ),
    "runs delete": Help(
        "delete runs that are kept",
        "Deletes runs. Others go by themselves when they are too old or too many.",
        "cellblock runs delete 5f1c0a9be2d34c77  # and all that its script saw",
    ),
    "types": Help(
        "print the TypeScript declarations of servers",
        "Prints the TypeScript declarations that scripts are written against.",
        "cellblock types files --config cellblock.json > servers.d.ts  # one server, for an editor",
        "cellblock types --config cellblock.json --json  # all, by server",
    ),
    "search": Help(
        "find tools by what they do",
        "Finds the tools that fit a description, best first.",
        'cellblock search "open issues" --config cellblock.json  # by what a tool does',
        "cellblock search read --server files --limit 3 --config cellblock.json --json  # for machines",
        "cellblock search read --types --config cellblock.json  # as declarations",
        one="nothing was found, and servers are not connected",
    ),
    "inspect": Help(
        "show one tool's description and schemas",
        "Shows one tool: JSON, or text for people on a terminal.",
        "cellblock inspect files.read_file --config cellblock.json  # by server and tool",
        "cellblock inspect mcp__files__read_file --config cellblock.json --json  # by its name in MCP",
    ),
    "pins": Help(
        "pin a server's tools as they are now",
        "Works with the definitions of tools that you have seen, and that later ones are compared with.",
        "cellblock pins approve files --show --config cellblock.json  # what differs",
    ),
    "pins approve": Help(
        "show how a server's tools differ from their pins, and pin them as they are now",
        "Connects to one server and shows which of its tools are new, or changed since they were pinned.",
        "cellblock pins approve files --show --config cellblock.json  # what differs",
        "cellblock pins approve files read_file --config cellblock.json  # approve one tool",
        "cellblock pins approve files --all --config cellblock.json  # approve all that differ",
        one="tools differ from their pins, and none was approved",
    ),
    "schemas": Help(
        "what tools return: overlay files, and what was observed",
        "Works with what is known of the results of tools. No tool is called.",
        "cellblock schemas export --config cellblock.json  # what is known of all outputs",
    ),
    "schemas init": Help(
        "write a commented overlay file to fill in",
        "Writes a commented overlay file for one server, to say in it what its tools return.",
        "cellblock schemas init files --config cellblock.json  # an overlay to fill in",
    ),
    "schemas export": Help(
        "print what is known of outputs as JSON, or whole tool definitions for others",
        "Prints what is known of outputs, declared, given or observed, as JSON. With --format, prints the tools as MCP "
        "clients, OpenAI's and Anthropic's APIs, TypeScript or JSON Schema have them, with what is known of outputs.",
        "cellblock schemas export files --config cellblock.json > files.json  # one server",
        "cellblock schemas export --format openai --config cellblock.json | jq .tools  # for a request to OpenAI",
        "cellblock schemas export --format typescript --config cellblock.json > tools.d.ts  # observed types, too",
    ),
    "schemas diff": Help(
        "print how what a tool returns has changed",
        "Prints how the results of a tool have changed since they were first observed.",
        "cellblock schemas diff files read_file --config cellblock.json  # how its results have changed",
    ),
    "schemas clear": Help(
        "forget what was observed",
        "Forgets what was observed: of one tool, of one server, or everything.",
        "cellblock schemas clear files read_file --config cellblock.json  # forget one tool",
        "cellblock schemas clear  # forget everything",
    ),
    "auth": Help(
        "log in to upstream servers with OAuth",
        "Logs in to the HTTP servers of the configuration. A daemon that runs already sees it within a second; it "
        "never opens a browser by itself.",
        "cellblock auth login wiki --config cellblock.json  # log in to a server",
    ),
    "auth login": Help(
        "log in to one server in a browser",
        "Opens a browser, waits until you have logged in there, and keeps the login in the system's keyring, or else "
        "in a file that only you can read. Asks for the scopes that calls were refused for, too. Exit code 3 when "
        "nobody has logged in.",
        "cellblock auth login wiki --config cellblock.json  # in a browser",
        "cellblock auth login wiki --no-browser --config cellblock.json  # prints the address to open",
    ),
    "auth status": Help(
        "say how the logins stand",
        "Says how the logins stand, without asking any server. Exit code 1 when SERVER is named and there is no login"
        " that can be used.",
        "cellblock auth status --config cellblock.json --json  # all servers with a url",
        one="there is no login of SERVER that can be used",
    ),
    "auth list": Help(
        "list who is logged in where",
        "Lists all logins: to which server, whose, since when, for what.",
        "cellblock auth list --json  # for machines",
    ),
    "auth logout": Help(
        "end a login",
        "Ends a login, at the authorization server too where it can be ended there, and forgets it. Daemons end their "
        "sessions of it.",
        "cellblock auth logout wiki --config cellblock.json  # forgets the login, here and at the server",
        "cellblock auth logout --principal oauth:ann --everything  # ann has left",
    ),
    "secret": Help(
        "keep secrets for references of the configuration",
        "Keeps secrets for references such as ${keyring:GITHUB_TOKEN}: in the system's keyring (macOS Keychain, Secret "
        "Service, KWallet), or where there is none in encrypted files.",
        "cellblock secret set GITHUB_TOKEN  # asks for the value",
    ),
    "secret set": Help(
        "keep a secret",
        "Asks for a value without showing it, or reads it from standard input, and keeps it under NAME."
        " A daemon that refers to it takes it over within seconds.",
        "cellblock secret set GITHUB_TOKEN  # asks for the value",
        "cellblock secret set GITHUB_TOKEN < token.txt  # the text of a file, without its last line end",
    ),
    "secret list": Help(
        "print the names of all secrets",
        "Prints the names of all secrets, never a value, and where the configuration refers to them.",
        "cellblock secret list --config cellblock.json  # names, and who uses them",
        "cellblock secret list --json  # for machines",
    ),
    "secret remove": Help(
        "forget a secret",
        "Removes a secret, and warns when the configuration still refers to it.",
        "cellblock secret remove GITHUB_TOKEN  # forgets it",
        one="there is no secret of this name",
    ),
    "config": Help(
        "check a configuration file",
        "What concerns configuration files.",
        "cellblock config check --config cellblock.json  # all errors, with line and column",
    ),
    "config check": Help(
        "list everything that is wrong with a file, with line and column",
        "Lists everything that is wrong with a configuration file, as file:line:column, and what it configures. Shows"
        " no values, starts nothing, and loads no Python tools: those `doctor` tries.",
        "cellblock config check --config cellblock.json  # all errors, with line and column",
        "cellblock config check --config ~/.cursor/mcp.json --json  # another client's file, for machines",
        one="the file has errors",
    ),
    "import": Help(
        "take over the servers of other MCP clients on this machine",
        "Finds the MCP servers of Claude Code, Claude Desktop, Cursor, VS Code, Windsurf, Codex, Gemini CLI, Zed, "
        "opencode and goose, shows what it would do, and asks. What restricts a server's tools is carried over. "
        "Secrets are not copied unless you say so: references stand in their place, to environment variables or to "
        "the system's keyring.",
        "cellblock import --dry-run  # what would be done",
        "cellblock import --from cursor --from vscode --config cellblock.json  # two clients, into this file",
        "cellblock import --secrets keyring  # with the secrets in the system's keyring",
        "cellblock import --yes --copy-secrets  # everything, secrets too, without a question",
    ),
    "install": Help(
        "put Cellblock into the configuration of an editor or agent",
        "Shows how the client's configuration file would change, asks, and writes it, with a copy of the old one "
        "beside it (three stay). Comments and all other settings stay as they are.",
        "cellblock install claude-code  # for you, in every project",
        "cellblock install cursor vscode --project  # in this project's files",
        "cellblock install --all-detected --take-over --secrets keyring --yes  # everywhere, with their servers",
        "cellblock install codex --print  # only show the entry",
        "cellblock install codex --uninstall  # out again; what was taken over comes back",
    ),
    "add": Help(
        "add a server to the configuration",
        "Adds a server to the configuration file, in which comments and all else stay, checks the result, and leaves a "
        "copy of the old file. A running daemon takes it over within seconds.",
        "cellblock add notes -- npx -y @modelcontextprotocol/server-filesystem ~/notes  # a command",
        "cellblock add tickets https://tickets.example/mcp --header 'Authorization: Bearer ${env:TICKETS}'  # over"
        " HTTP, with a token of the environment",
        "cellblock add notes --replace --env LEVEL=debug -- notes-server --root /srv  # another one of this name",
    ),
    "remove": Help(
        "take a server out of the configuration",
        "Takes a server, and what `upstream`, `pins`, `auth` and `schemas` say of it, out of the configuration file. "
        "A copy of the old one is left.",
        "cellblock remove tickets  # out of your own configuration",
    ),
    "enable": Help(
        "use a server again that was disabled",
        "Takes `disabled` out of a server's entry.",
        "cellblock enable notes  # as before",
    ),
    "disable": Help(
        "leave a server out, and keep its entry",
        "Writes `disabled` into a server's entry.",
        "cellblock disable notes  # until it is enabled",
    ),
    "status": Help(
        "say how the servers of the running daemon are",
        "Shows the state of each server of the daemon that runs with this configuration; of one that is not connected: "
        "why, what it said last, what to do, and the command that starts it again.",
        "cellblock status  # all servers",
        "cellblock status files --json  # one, for machines",
        one="a server is not connected",
    ),
    "stop": Help(
        "end the running daemon",
        "Ends the daemon that runs with this configuration, and its servers with it, once its runs in flight are "
        "over. It is no error when none runs.",
        "cellblock stop  # the next editor that connects starts it again",
    ),
    "restart": Help(
        "start a server of a running daemon anew",
        "Ends a server of a running `cellblock serve --http`, whatever it does, and starts it again. Calls that it has "
        "not answered fail.",
        "cellblock restart files  # also one that hangs",
    ),
    "logs": Help(
        "show what a server, or the daemon, has written to its stderr",
        "Shows the end of what a server that a daemon has started wrote to its stderr, without the configuration's "
        "secrets; or what a daemon wrote that `connect` has started.",
        "cellblock logs files  # the last lines",
        "cellblock logs files -f  # and those that come, until Ctrl-C",
        "cellblock logs  # of the daemon itself",
    ),
    "doctor": Help(
        "say what is in force on this machine, what is missing, and what does not work",
        "Starts everything once and says what is in force, missing or broken, and how to mend it.",
        "cellblock doctor --config cellblock.json  # before you ask anyone",
        "cellblock doctor --tls-cert cert.pem --tls-key key.pem  # and this certificate",
        "cellblock doctor --json  # for machines",
        one="there is a problem",
    ),
    "keygen": Help(
        "make the key pair of a broker or of a worker host, and print its public key",
        "Makes FILE with a new key pair, readable by you alone, and prints the public key. Of a FILE that exists, "
        "prints the public key.",
        "cellblock keygen ~/.config/cellblock/broker.key  # for hosts on other machines",
    ),
    "demo": Help(
        "run a real script against two servers that need nothing external",
        "Runs a real script against two servers that need nothing external, and shows what happens.",
        "cellblock demo  # needs no configuration",
        one="the demo's script failed",
    ),
    "completion": Help(
        "print what makes a shell complete commands, options and server names",
        "Prints a script for the shell. Completion asks this program, so it is never out of date.",
        "cellblock completion bash > ~/.local/share/bash-completion/completions/cellblock  # bash",
        "cellblock completion zsh > ~/.zfunc/_cellblock  # zsh, when ~/.zfunc is in fpath",
        "cellblock completion fish > ~/.config/fish/completions/cellblock.fish  # fish",
    ),
    "help": Help(
        "show the help of a command",
        "Shows the help of a command, as its --help does.",
        "cellblock help  # all commands",
        "cellblock help config check  # one command",
    ),
}
"""Maps commands to their words. The tests parse each example."""


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
    """Wraps a description of one line, leaves examples as they are, and lists all commands in their groups."""

    def _format_action(self, action: argparse.Action) -> str:
        subactions = getattr(action, "_get_subactions", None)
        if action.dest != "command" or subactions is None:
            return super()._format_action(action)
        commands = {one.dest: one for one in subactions()}
        lines: list[str] = []
        for group, names in GROUPS.items():
            lines.append(f"  {group}:\n")
            self._indent()
            lines += [super(Formatter, self)._format_action(commands[name]) for name in names]
            self._dedent()
        return "".join(lines)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def shown(path: str) -> dict[str, Any]:
    """Returns what a command's parser shows: its description, and its examples and exit codes at the end."""
    examples = "\n".join(f"  {line}\n      {meaning}" for line, meaning in HELP[path].examples)
    codes = "\n".join(f"  {code:<4} {meaning}" for code, meaning in exit_codes(path).items())
    return {
        "description": HELP[path].description,
        "epilog": f"examples:\n{examples}\n\nexit codes:\n{codes}",
        "formatter_class": Formatter,
    }


def exit_codes(path: str) -> dict[int, str]:
    """Returns the exit codes of a command; of the program itself: what they mean everywhere."""
    if not path:
        return dict(EXIT_CODES)
    codes = EXIT_CODES | {1: HELP[path].one}
    return {code: meaning for code in (0, 1, 2, 3) if (meaning := codes[code]) is not None}
