"""`auth` and `secret`: logins to upstream servers, values in the system's keyring, and the removal of all that a
principal has: token, secrets, logins, kept outputs and runs, and what its own servers have taught."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import shlex
import sys
import time
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from cellblock.app.cli.arguments import UsageError, reading
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import opened, store_to_read, with_state_dir
from cellblock.app.cli.streams import answer, say
from cellblock.app.config.load import parse_source, read_source
from cellblock.app.config.named_secrets import NAME, NAME_RULE, NamedSecrets
from cellblock.app.config.references import MAX_FILE_BYTES, uses_in
from cellblock.base.errors import ConfigError, counted
from cellblock.base.settings.policy import NAMED, check_clients, person_of
from cellblock.base.settings.settings import Settings
from cellblock.base.store import Store
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.base.terminal import harmless
from cellblock.record.journals import open_store
from cellblock.record.store import JOURNAL_TABLES, JournalStore
from cellblock.run.policy.named_tokens import NamedTokens
from cellblock.serve import kept_outputs
from cellblock.tools.catalog.model import learnt_as
from cellblock.tools.upstream.auth import flow
from cellblock.tools.upstream.auth.login import held_logins, log_in, log_out, status_of, whose_login
from cellblock.tools.upstream.auth.sources import OwnSecrets
from cellblock.tools.upstream.auth.target import LoginTarget, target_of
from cellblock.tools.upstream.server_logins import can_log_in
from cellblock.types.learning import store as learning
from cellblock.types.learning.store import Observations


@reading(with_state_dir)
async def login(parsed: argparse.Namespace, settings: Settings) -> None:
    """Waits until somebody has logged in to one server in a browser.

    Raises:
        ConfigError: There is no such server, or OAuth is not for it.
        LoginError: Nobody has logged in.
    """
    target = _target(settings, parsed.server)
    folder = None if parsed.no_browser else settings.state_dir
    tell = partial(print, file=sys.stderr, flush=True)
    sys.stdout.write(await log_in(target, browser=folder, bound=parsed.timeout, say=tell) + "\n")


@reading(with_state_dir)
async def logout(parsed: argparse.Namespace, settings: Settings) -> None:
    """Ends and forgets logins.

    Raises:
        UsageError: The arguments name none, or no principal.
        ConfigError: As `login`.
    """
    server: str | None = parsed.server
    principal: str | None = parsed.principal
    if server is None and principal is None:
        raise UsageError("name a server, or --principal")
    try:
        check_clients([] if principal is None else [principal])
    except ValueError as error:
        raise UsageError(f"--principal: {error}") from None
    person = person_of(principal or "")
    if parsed.everything:
        if principal is None or server is not None or not person:
            raise UsageError("--everything needs --principal NAME of somebody else than you, and no server")
        sys.stdout.write(await remove_all_of(settings, principal))
        return
    store, auth = store_to_read(settings), settings.cellblock.auth
    found = [
        (one.store, one.server)
        for one in await held_logins(store, auth)
        if one.person == person and server in (None, one.server)
    ]
    if not found and server is not None:
        # One that cannot be read may be it.
        found = [(target_of(server, settings.servers, auth, store, person).store(), server)]
    for place, name in found:
        sys.stdout.write(await log_out(place, whose_login(name, person)) + "\n")
    if not found:
        sys.stdout.write(f"There is no login of {principal}.\n")


@reading(with_state_dir)
async def show_logins(parsed: argparse.Namespace, settings: Settings) -> None:
    """Prints all logins. Raises LoginError: They cannot be listed."""
    found = [one.status() for one in await held_logins(store_to_read(settings), settings.cellblock.auth)]
    answer(parsed, found, "".join(map(_line, found)) or "Nobody is logged in.\n")


@reading(with_state_dir)
async def status(parsed: argparse.Namespace, settings: Settings) -> int:
    """Prints how the logins stand. Raises ConfigError as `login`."""
    # Of one that lacks something the URL may not be known; the warning says what.
    known = [
        name for name, config in settings.servers.items() if can_log_in(config) and config.missing is None
    ]
    found: list[dict[str, Any]] = []
    for name in known if parsed.server is None else [parsed.server]:
        found.append(await status_of(_target(settings, name)))
        if settings.servers[name].is_personal and found[-1]["state"] != "by identity":
            held = await held_logins(store_to_read(settings), settings.cellblock.auth)
            found[-1]["othersLoggedIn"] = sum(one.server == name and bool(one.person) for one in held)
    answer(parsed, found, "".join(map(_line, found)) or "No server that is started has a url.\n")
    usable = all(one["state"] in ("logged in", "client credentials", "by identity") for one in found)
    return EXIT_OK if usable or parsed.server is None else EXIT_NO


def _target(settings: Settings, server: str) -> LoginTarget:
    return target_of(server, settings.servers, settings.cellblock.auth, store_to_read(settings))


def _line(status: dict[str, Any]) -> str:
    name = whose_login(status["server"], status.get("principal") or "")
    others: int | None = status.get("othersLoggedIn")
    whose = "" if others is None else " of your own" if status["state"] == "none" else ", you"
    parts = [f"{name}: {'no login' if status['state'] == 'none' else status['state']}{whose}"]
    if others is not None:
        parts.append(f"{counted(others, 'login')} of others (cellblock auth list)")
    if status.get("since"):
        parts.append(f"since {time.strftime('%Y-%m-%d %H:%M', time.localtime(status['since']))}")
    parts += [
        f"{word} {status[key]}" for key, word in (("issuer", "at"), ("scope", "for")) if status.get(key)
    ]
    if status["state"] == "logged in":
        left = status["expiresInSeconds"]
        renewed = "is renewed by itself" if status["renewable"] else "cannot be renewed"
        if left is None:
            parts.append("without an end")
        elif left <= 0:
            parts.append("its token has expired and is renewed when it is needed")
        else:
            parts.append(f"its token ends in {left} s and {renewed}")
        parts.append(f"kept in the {status['kept']}")
    if status.get("wantedScope"):
        parts.append(f"the server has asked for {status['wantedScope']}")
    if status.get("renewedAt"):
        parts.append(f"last renewed {time.strftime('%Y-%m-%d %H:%M', time.localtime(status['renewedAt']))}")
    parts += [status[key].rstrip(".") for key in ("problem", "hint") if status.get(key)]
    return harmless("; ".join(parts)) + "\n"


_HOW: Final = "Give it at the prompt, or on standard input: cellblock secret set NAME < file."


def put(parsed: argparse.Namespace) -> None:
    """Asks for a secret, or reads it from standard input, and keeps it.

    Raises:
        UsageError: The name or the value is none.
        KeyringError: No keyring keeps it.
    """
    name = _checked(parsed.name)
    if parsed.principal is not None:
        _own_secrets(parsed).put(name, _value(name))
        sys.stdout.write(
            f"{name} of {parsed.principal} is kept. Refer to it in headers with ${{secret:{name}}}.\n"
        )
        return
    secrets = NamedSecrets()
    # Asked before the person is: there may be no keyring to keep it.
    done = "is kept" if secrets.get(name) is None else "has a new value"
    secrets.put(name, _value(name))
    sys.stdout.write(f"{name} {done} {secrets.place}. Refer to it with ${{keyring:{name}}}.\n")


def show(parsed: argparse.Namespace) -> None:
    """Prints the names of all secrets, and where the configuration refers to them. Raises ConfigError."""
    uses = _uses(parsed.config)
    names = NamedSecrets().names()
    found = [{"name": name, "usedBy": uses.get(name, [])} for name in names]
    absent = [{"name": name, "usedBy": uses[name]} for name in sorted(uses.keys() - set(names))]
    lines: list[str] = []
    for name in names:
        used = f"{', '.join(uses[name])} in {parsed.config}" if name in uses else "not used"
        lines.append(f"{name}  {used if parsed.config else ''}".rstrip())
    lines += [
        f"{one['name']}  not set: cellblock secret set {one['name']}  {', '.join(one['usedBy'])}"
        for one in absent
    ]
    text = "\n".join(lines) or "There are no secrets. Make one: cellblock secret set NAME"
    answer(parsed, {"config": parsed.config, "secrets": found, "notSet": absent}, f"{text}\n")


def remove(parsed: argparse.Namespace) -> int:
    """Forgets a secret. Raises KeyringError, and ConfigError where the configuration cannot be read."""
    name = _checked(parsed.name)
    if parsed.principal is not None:
        was_there = _own_secrets(parsed).remove(name)
        said = "is removed" if was_there else "was not there"
        sys.stdout.write(f"{name} of {parsed.principal} {said}.\n")
        return EXIT_OK if was_there else EXIT_NO
    secrets = NamedSecrets()
    uses = _uses(parsed.config).get(name, [])
    if not secrets.remove(name):
        hint = did_you_mean(nearest_names(name, secrets.names(), 1), "`cellblock secret list` shows all.")
        say(f"there is no secret {name}. {hint}")
        return EXIT_NO
    sys.stdout.write(f"{name} is removed.\n")
    if uses:
        say(f"warning: {parsed.config} still refers to {name}: {', '.join(uses)}")
    return EXIT_OK


def _own_secrets(parsed: argparse.Namespace) -> OwnSecrets:
    return OwnSecrets(store_to_read(with_state_dir(parsed)), person_of(parsed.principal))


def _checked(name: str) -> str:
    if NAME.fullmatch(name) is None:
        raise UsageError(f"{shlex.quote(name)} is no name of a secret. {NAME_RULE}")
    return name


def _value(name: str) -> str:
    if sys.stdin.isatty():
        try:
            value = getpass.getpass(f"Value of {name} (not shown): ")
        except EOFError:
            value = ""
    else:
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise UsageError(f"the value is over {MAX_FILE_BYTES} bytes. {_HOW}")
        try:
            value = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise UsageError(f"the value is no UTF-8 text. {_HOW}") from None
    if not value or "\0" in value:
        raise UsageError(f"the value {'has a NUL character' if value else 'is empty'}. {_HOW}")
    return value


def _uses(config: str | None) -> dict[str, list[str]]:
    return {} if config is None else uses_in(parse_source(read_source(config)))


END_SECONDS: Final = 10.0
"""Bounds the wait for brokers to end runs that go on."""

SETTLE_SECONDS: Final = 2.0
"""Passes from then until brokers have written down what they know of them."""


async def remove_all_of(settings: Settings, principal: str) -> str:
    """Removes it, and returns lines that say what there was. What fails can be done again.

    Raises:
        LoginError, ConfigError: Something cannot be removed.
    """
    store, auth = store_to_read(settings), settings.cellblock.auth
    tokens, name = NamedTokens(store), principal.removeprefix(NAMED)
    if name != principal and any(one.name == name for one in tokens.all()):
        tokens.revoke(name)
    _forget_begun(store, principal)
    try:
        secrets = OwnSecrets(store, principal).remove_all()
    except OSError as error:
        raise ConfigError(
            f"The secrets of {principal} cannot be removed: {error.strerror}.", hint="Try again."
        ) from None
    said = [
        await log_out(one.store, whose_login(one.server, principal))
        for one in await held_logins(store, auth)
        if one.person == principal
    ]
    runs = outputs = tools = 0
    if store.exists(JOURNAL_TABLES):
        with opened(
            settings,
            "The kept runs",
            lambda: contextlib.closing(open_store(store, auth, settings.cellblock.journal)),
        ) as journals:
            runs = await _ended(journals, principal)
    if store.exists(kept_outputs.TABLES):
        with opened(
            settings,
            "The kept outputs",
            lambda: contextlib.closing(store.database(kept_outputs.TABLES, checked=False)),
        ) as database:
            outputs = kept_outputs.forget(database, principal)
    if store.exists(learning.TABLES):
        with opened(
            settings,
            "What was observed",
            lambda: contextlib.closing(Observations(store.database(learning.TABLES))),
        ) as seen:
            own = {key.server for key in seen.load() if key.server.endswith(learnt_as("", principal))}
            tools = sum(map(seen.clear, own))
    said.append(
        f"Removed of {principal}: {counted(secrets, 'secret')}, {counted(runs, 'kept run')}, "
        f"{counted(outputs, 'kept output')}, and what was learnt of {counted(tools, 'tool')}."
    )
    return "".join(f"{line}\n" for line in said)


async def _ended(journals: JournalStore, principal: str) -> int:
    """Has the brokers end the runs of a principal that go on, and deletes all that it has."""
    deadline, went_on = time.monotonic() + END_SECONDS, False
    while time.monotonic() < deadline and (running := journals.heads(principal, state="running")):
        went_on = True
        for head in running:
            journals.ask_to_end(head.id)
        await asyncio.sleep(0.2)
    await asyncio.sleep(SETTLE_SECONDS if went_on else 0)
    return journals.delete_all_of(principal)


def _forget_begun(store: Store, principal: str) -> None:
    """Removes the logins that somebody has begun: they would be finished behind this."""
    shelf = store.shelf(flow.KIND, flow.MAX_BYTES)
    for name in shelf.names():
        with contextlib.suppress(FileNotFoundError, ValidationError):
            if flow.BegunLogin.model_validate_json(shelf.read(name)).login.person == principal:
                shelf.remove(name)
