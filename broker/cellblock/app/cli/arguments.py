"""Arguments holds what the commands' parsers are made of: options in the same words, and answers to a wrong line."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeVar

import platformdirs

from cellblock.app.cli.help import EXIT_USAGE, all_commands
from cellblock.base.errors import CellblockError, Fault

DEFAULT_ADDRESS: Final = "127.0.0.1:7433"
"""Names where `serve --http` listens and `connect` looks when nothing else is said."""

USERS_OWN: Final = "cellblock.json in your settings folder, if it is there"
"""Names the file that `default_file` returns, for people."""


Input = TypeVar("Input")

Code = int | None
"""Is what the function of a command gives: an exit code; None where all went well."""

Work = Coroutine[Any, Any, Code]


def reading(
    read: Callable[[argparse.Namespace], Input],
) -> Callable[[Callable[[argparse.Namespace, Input], Work]], Callable[[argparse.Namespace], Work]]:
    """Makes a command of a coroutine function and of what reads its input from files, before the loop runs."""
    return lambda work: lambda parsed: work(parsed, read(parsed))


class UsageError(CellblockError):
    """Tells that arguments cannot be used; the text says why, and what to do."""

    fault = Fault.CALLER

    def __init__(self, text: str) -> None:
        super().__init__(text, hint="")


def default_file() -> Path:
    """Returns where `cellblock import` writes, and all other commands look, when no file is named."""
    return Path(platformdirs.user_config_dir("cellblock")) / "cellblock.json"


def other_file(parsed: argparse.Namespace) -> str | None:
    """Returns the file that `--config` names; None where it is the `default_file`, or none is named."""
    return None if parsed.config is None or Path(parsed.config) == default_file() else parsed.config


class Parser(argparse.ArgumentParser):
    """A parser has options by their kind, prints help where a command is missing, and knows what was probably meant.

    Each method that adds something returns the parser, so that a command is one chain.
    """

    _is_parsing = False

    behind_dashes: str | None = None
    """Names what takes all words behind the first `--`, as they are: argparse would take further ones out."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - its overloads say nothing more
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Parses as argparse does, but options may stand between other words, and a command behind `--`."""
        if self._subparsers is not None or self._is_parsing:
            return super().parse_known_args(args, namespace)
        words: list[str] = list(args)
        at = words.index("--") if self.behind_dashes is not None and "--" in words else len(words)
        self._is_parsing = True
        try:
            found, rest = self.parse_known_intermixed_args(words[:at], namespace)
        finally:
            self._is_parsing = False
        if self.behind_dashes is None:
            return found, rest
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}; a command is given behind --")
        if at < len(words):
            setattr(found, self.behind_dashes, words[at + 1 :])
        return found, rest

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parses a command line; what nothing of it takes is told by the command that it is for."""
        first = args[0] if args else ""
        if first.startswith("-") and first not in self._option_string_actions:
            self._refuse_before_command(first.partition("=")[0], args[1:])
        parsed, left = self.parse_known_args(args, namespace)
        if left:
            words = (getattr(parsed, name, None) for name in ("command", "action"))
            path = " ".join(word for word in words if word is not None)
            _refuse(dict(all_commands(self)).get(path, self), left[0].partition("=")[0])
        return parsed

    def _refuse_before_command(self, option: str, words: Sequence[str]) -> NoReturn:
        """Ends the program for an option before the command; of what the command has not, it says that."""
        known = dict(all_commands(self))
        line = f" {' '.join(words)} "
        there = [path for path in known if path and f" {path} " in line]
        path = min(there, key=lambda path: (line.index(f" {path} "), -len(path)), default="")
        if path and option not in known[path]._option_string_actions:  # pyright: ignore[reportPrivateUsage]
            _refuse(known[path], option)
        where = known[path].prog if path else f"{self.prog} COMMAND"
        self.exit(EXIT_USAGE, f"{self.prog}: options stand behind the command, as in `{where} {option}`.\n")

    def error(self, message: str) -> NoReturn:
        """Says what is wrong on standard error, and ends the program with exit code 2."""
        if re.search(r"are required: (COMMAND|ACTION)$", message):
            self.print_help(sys.stderr)
            self.exit(EXIT_USAGE)
        where, is_choice, rest = message.removeprefix("argument ").partition(": invalid choice: ")
        if is_choice:
            from cellblock.base.suggest import did_you_mean, nearest_names

            name, _, choices = rest.rpartition(" (choose from ")
            name, known = name.strip("'"), re.findall(r"[\w-]+", choices)
            near = nearest_names(name, known, 1)
            if where in ("COMMAND", "ACTION"):
                where, near = "command", [f"`{self.prog} {one}`" for one in near]
            what = f"{where}: there is no" if where.startswith("-") else f"there is no {where.lower()}"
            hint = did_you_mean(near, f"There are: {', '.join(known)}.")
            self.exit(EXIT_USAGE, f"{self.prog}: {what} {name}. {hint}\n")
        super().error(message.replace("invalid int value:", "a whole number is needed, not"))

    def flag(self, name: str, meaning: str, *, short: str | None = None) -> Self:
        """Adds an option without a value; `short` is its other name, of one letter."""
        self.add_argument(*filter(None, (short, name)), action="store_true", help=meaning)
        return self

    def value(self, name: str, metavar: str, meaning: str | None = None, **more: Any) -> Self:
        """Adds an option with a value, or a positional argument; `more` is as for `add_argument`."""
        if metavar in ("FILE", "DIR"):
            more["type"] = partial(_named, more.get("type", str))
        self.add_argument(name, metavar=metavar, help=meaning, **more)
        return self

    def choice(self, name: str, choices: Sequence[str], meaning: str | None = None) -> Self:
        """Adds an option, or a positional argument, whose value is one of a few words."""
        self.add_argument(name, choices=choices, help=meaning)
        return self

    def common(self, *, json: bool = True) -> Self:
        """Adds what most commands have: configuration, state directory and, with `json`, output for machines."""
        if json:
            self.flag("--json", "print JSON")
        self.value("--config", "FILE", f"mcpServers JSON, or the same as TOML (default: {USERS_OWN})")
        return self.state_dir()

    def state_dir(self) -> Self:
        """Adds the option for the state directory."""
        return self.value("--state-dir", "DIR", "where logs and stores live", type=Path)

    def secrets(self, when: str = "", otherwise: str = "the default") -> Self:
        """Adds where the secrets of servers that are taken over go."""
        return self.choice(
            "--secrets",
            ["keyring", "environment"],
            f"{when}put secrets into the system's keyring, or refer to environment variables ({otherwise})",
        )

    def server(self) -> Self:
        return self.value("server", "SERVER", "its name in mcpServers")

    def address(self, meaning: str) -> Self:
        return self.value(
            "--http", "HOST:PORT", f"{meaning} (default {DEFAULT_ADDRESS})", default=DEFAULT_ADDRESS
        )

    def certificate(self, meaning: str) -> Self:
        self.value("--tls-cert", "FILE", meaning, type=Path)
        return self.value("--tls-key", "FILE", "its private key", type=Path)

    def token_file(self) -> Self:
        return self.value(
            "--token-file", "FILE", "where the token is (default: `token` in the state dir)", type=Path
        )

    def daemon(self) -> Self:
        """Adds where a running daemon is, and what it is shown."""
        self.value("--url", "URL", f"of the daemon (default http://{DEFAULT_ADDRESS}/mcp)")
        self.value("--tls-ca", "FILE", "PEM certificates to trust for https", type=Path)
        return self.token_file()


def _named(kind: Callable[[str], Any], text: str) -> Any:
    """Returns what names a file or a folder. Raises ArgumentTypeError for nothing: it would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return kind(text)


def _refuse(command: argparse.ArgumentParser, word: str) -> NoReturn:
    from cellblock.base.suggest import did_you_mean, nearest_names

    is_option = word.startswith("-")
    known = command._option_string_actions  # pyright: ignore[reportPrivateUsage]
    is_file = word.endswith((".json", ".toml")) and "--config" in known
    near = [f"--config {word}"] if is_file else nearest_names(word, known if is_option else (), 1)
    hint = did_you_mean(near, f"`{command.prog} --help` shows what there is.")
    kind = "option" if is_option else "argument"
    command.exit(EXIT_USAGE, f"{command.prog}: there is no {kind} {word} here. {hint}\n")
