"""Edit_servers runs `add`, `remove`, `enable` and `disable`: one server in the configuration file, and nothing else."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from cellblock.app.cli.approval import first_look
from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.config_file import OwnFile
from cellblock.app.cli.streams import warn
from cellblock.app.config.client_permissions import shown_path
from cellblock.app.config.edit import REMOVED, KeyPath
from cellblock.app.config.formats import ON_KEYS, value_at
from cellblock.app.config.load import load_settings
from cellblock.app.config.named_secrets import NamedSecrets, bind, bound
from cellblock.app.config.references import names_in, origin_of, uses_in
from cellblock.base.errors import ConfigError
from cellblock.base.json import is_object
from cellblock.base.secret_values import looks_secret
from cellblock.base.settings.older import BY_SERVER_BEFORE
from cellblock.base.settings.problems import SECTION_KEY, dotted
from cellblock.base.settings.settings import BY_SERVER
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.base.terminal import harmless
from cellblock.tools.catalog.naming import module_paths

SCHEMES: Final = ("http://", "https://")


def add(parsed: argparse.Namespace) -> None:
    """Writes a new server, or with --replace another one in its place.

    Raises:
        UsageError: The options make no server.
        ConfigError: There is another server of this name, or the file would be wrong.
    """
    name: str = parsed.server
    entry = _entry(parsed)
    file = OwnFile(parsed.config)
    present = file.servers.get(name)
    if present == entry:
        sys.stdout.write(harmless(f"{name} is in {shown_path(file.path)} already, as you have it.\n"))
        return
    file.change({file.place(name): entry})
    if present is not None and not parsed.replace:
        lines = "".join(f"  {line}\n" for line in file.difference(shown_path(file.path))[2:])
        raise ConfigError(
            f"There is another server {name} in {shown_path(file.path)}:\n{lines}",
            hint="Add --replace to have this one in its place, or give it another name.",
        )
    secret = _has_secret(entry)
    for reference in {*names_in(json.dumps(entry), "keyring")} & bound().keys():
        bind(reference, origin_of(entry))
    _save(file, f"{'Replaced' if present is not None else 'Added'}: {name}", [name], private=secret)
    if (imported := module_paths(file.servers | {name: entry})[name]) != name:
        sys.stdout.write(f"Scripts import it from @codemode/servers/{imported}\n")
    if secret:
        warn(
            f"a secret is in {shown_path(file.path)} now. A reference keeps it out of the file and of your shell's "
            "history: write '${env:NAME}' in its place, and set NAME in the environment of Cellblock."
        )
    command = entry.get("command")
    if command is not None and shutil.which(command) is None:
        warn(f"there is no program {command} on the PATH of this shell.")
    elif (settings := load_settings(file.path)).servers[name].missing is None:
        asyncio.run(first_look(settings, [name]))


def remove(parsed: argparse.Namespace) -> None:
    """Takes servers out, with what the section says of them by name. Raises ConfigError, as the others do."""
    file = OwnFile(parsed.config)
    names = [*dict.fromkeys(parsed.servers)]
    known = [_known(file, name) for name in names]
    sections = [(SECTION_KEY, *keys, name) for keys in (*BY_SERVER, *BY_SERVER_BEFORE) for name in names]
    said = [path for path in sections if value_at(file.data, path) is not None]
    secrets = uses_in(file.data)
    file.change(dict.fromkeys([*known, *said], REMOVED))
    all_names = ", ".join(names)
    also = f", and {', '.join('.'.join(path) for path in said)}" if said else ""
    _save(
        file,
        f"Removed: {all_names}{also}",
        names,
        hint=f"Take {all_names} out of these patterns first, or put another name there.",
    )
    tell_unused(secrets, OwnFile(parsed.config))


def tell_unused(secrets: Collection[str], file: OwnFile) -> None:
    """Tells which of these secrets the file does not refer to, and what removes them."""
    for name in sorted({*secrets} & {*NamedSecrets().names()} - uses_in(file.data).keys()):
        sys.stdout.write(
            harmless(
                f"The secret {name} is not used in {shown_path(file.path)} any more. "
                f"To remove it: cellblock secret remove {name}\n"
            )
        )


# ---- inside ------------------------------------------------------------------------------------------


def _known(file: OwnFile, name: str) -> KeyPath:
    """Returns the keys to a server that the file has.

    Raises:
        ConfigError: There is none of this name.
    """
    if name not in file.servers:
        there = f"There are: {', '.join(file.servers)}." if file.servers else "There are none."
        raise ConfigError(
            f"There is no server {dotted([name])} in {shown_path(file.path)}.",
            hint=did_you_mean(nearest_names(name, file.servers, 1), there),
        )
    return file.place(name)


def _save(
    file: OwnFile, done: str, names: Sequence[str], *, private: bool = False, hint: str | None = None
) -> None:
    """Writes the file, unless the change makes something in it wrong; `hint` says what to do then. What other servers
    than those of these names lack is not told.

    Raises:
        ConfigError: It does, or the file cannot be written.
    """
    told = file.check(hint)
    copy = file.write(private=private)
    sys.stdout.write(harmless(f"{done} ({shown_path(file.path)})\n"))
    if copy is not None:
        sys.stdout.write(f"The old file is {shown_path(copy)}\n")
    sys.stdout.write("A daemon that runs with this file takes it over within seconds.\n")
    sys.stdout.flush()
    others = {file.place(name) for name in file.servers.keys() - {*names}}
    own = [
        one
        for one in told
        if one.severity == "error" or not any(one.path[: len(place)] == place for place in others)
    ]
    warn(*(f"{problem.text(str(file.path))} {problem.hint}" for problem in own))


def _switch(parsed: argparse.Namespace, *, disabled: bool) -> None:
    file = OwnFile(parsed.config)
    word = "disabled" if disabled else "enabled"
    names = [*dict.fromkeys(parsed.servers)]
    paths = {name: _known(file, name) for name in names}
    for name, path in paths.items():
        if not is_object(value_at(file.data, path)):
            raise ConfigError(f"The entry of {name} is no object.", hint="Correct it in the file.")
        # What `normal` has read, whichever key says it.
        if bool(file.servers[name].get("disabled", False)) is disabled:
            sys.stdout.write(harmless(f"{name} is {word} already.\n"))
            names.remove(name)
            continue
        keys, before = ("disabled", *ON_KEYS), file.text
        file.change({(*path, "disabled"): True} if disabled else {(*path, key): REMOVED for key in keys})
        if file.text == before:
            raise ConfigError(
                f"{name} is switched off elsewhere in {shown_path(file.path)}.",
                hint="Gemini's `mcp` and Claude Code's lists switch servers off, too.",
            )
    if names:
        _save(file, f"{word.capitalize()}: {', '.join(names)}", names)


enable, disable = partial(_switch, disabled=False), partial(_switch, disabled=True)


def _entry(parsed: argparse.Namespace) -> dict[str, Any]:
    words: list[str] = parsed.program or []
    if bool(words) is (parsed.url is not None):
        raise UsageError("Give either a URL, or a command behind --.")
    if parsed.url is not None:
        if not parsed.url.startswith(SCHEMES):
            raise UsageError(f"{parsed.url} is no http or https URL; a command is given behind --.")
        if parsed.env:
            raise UsageError("--env is of use only with a command.")
        headers = _pairs(parsed.header, ":", "--header 'NAME: VALUE'")
        return {"url": parsed.url, **({"headers": headers} if headers else {})}
    if parsed.header:
        raise UsageError("--header is of use only with a URL.")
    env = _pairs(parsed.env, "=", "--env NAME=VALUE")
    command, *rest = map(_from_anywhere, words)
    return {"command": command, **({"args": rest} if rest else {}), **({"env": env} if env else {})}


def _from_anywhere(word: str) -> str:
    """Returns a program or an argument by its absolute path where it names a file here by a path, or begins with a dot:
    the daemon runs elsewhere. Any other word may be a name."""
    names_file = (os.sep in word or Path(word).suffix != "") and Path(word).is_file()
    is_path = names_file or (word.startswith(".") and Path(word).exists())
    return os.path.abspath(word) if is_path else word  # noqa: PTH100


def _pairs(given: Sequence[str], sign: str, wanted: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, found, value = text.partition(sign)
        if not found or not name.strip():
            # What is given may be a secret, and is not quoted.
            raise UsageError(f"Each is to be given as {wanted}.")
        pairs[name.strip()] = value.strip() if sign == ":" else value
    return pairs


def _has_secret(entry: Mapping[str, Any]) -> bool:
    pairs = [*entry.get("env", {}).items(), *entry.get("headers", {}).items()]
    words = [entry.get("url", ""), *entry.get("args", ())]
    return any(looks_secret(*pair) for pair in pairs) or any(looks_secret("", word) for word in words)
