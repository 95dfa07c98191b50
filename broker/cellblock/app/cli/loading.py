"""Loading reads what commands have in common: the settings, before the command's loop runs, and the catalog in it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Collection, Generator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from cellblock.app.assembly import store_of
from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import default_file
from cellblock.app.cli.streams import say, warn
from cellblock.app.config.load import load_settings
from cellblock.base.database import StoreError
from cellblock.base.errors import ConfigError
from cellblock.base.settings.settings import Settings
from cellblock.base.state_dir import check_state_dir
from cellblock.base.store import LocalStore, Store
from cellblock.base.tasks import in_background
from cellblock.tools.catalog.model import Catalog

QUIET_SECONDS: Final = 1.0
"""Passes until anything is said of a server that is waited for."""

Opened = TypeVar("Opened")


def settings_of(parsed: argparse.Namespace) -> Settings:
    """Returns the settings that `--config` and `--state-dir` name, and tells what is let pass in them.

    Raises:
        ConfigError: They cannot be used.
    """
    settings = load_settings(parsed.config).with_state_dir(parsed.state_dir)
    warn(*settings.warnings)
    # Named, since commands share it: a broker of a program that names none has one of its own.
    return settings.with_state_dir(settings.state_dir)


def with_state_dir(parsed: argparse.Namespace) -> Settings:
    """Returns the settings for commands that keep something in the state directory, which is looked at.

    Raises:
        ConfigError: They or the directory cannot be used.
    """
    settings = settings_of(parsed)
    warn(check_state_dir(settings.state_dir))
    return settings


def of_state(parsed: argparse.Namespace) -> Settings:
    """Returns the same for commands that need no server, or say why those that they need are not there: what servers
    lack is not told. Raises as `with_state_dir`."""
    settings = load_settings(parsed.config).with_state_dir(parsed.state_dir)
    warn(check_state_dir(settings.state_dir))
    return settings.with_state_dir(settings.state_dir)


def store_to_read(settings: Settings) -> Store:
    """Returns where the brokers of a configuration keep things, with small things as they are now.

    Raises:
        ConfigError: PostgreSQL cannot be used.
    """
    store = store_of(settings)
    if isinstance(store, LocalStore):
        return store
    try:
        store.rows.read()
    except StoreError as error:
        raise ConfigError(f"What brokers share cannot be read: {error}.", hint="Check state.url.") from None
    finally:
        # What is written later has a connection of its own: nobody says when the last one is.
        store.server.close()
    return store


@contextlib.contextmanager
def opened(
    settings: Settings, what: str, open_one: Callable[[], contextlib.AbstractContextManager[Opened]]
) -> Generator[Opened]:
    """Opens a store for a while.

    Raises:
        ConfigError: It cannot be used; `what` names it for people.
    """
    try:
        with open_one() as store:
            yield store
    except StoreError as error:
        where = "state.url" if settings.cellblock.state.is_shared else "--state-dir"
        raise ConfigError(f"{what} cannot be used: {error}.", hint=f"Check {where}.") from None


def config_used(parsed: argparse.Namespace) -> str:
    """Returns the configuration file that a command uses, for people; where there is none, where it would be."""
    if parsed.config is not None:
        return str(Path(parsed.config).expanduser().absolute())
    return f"none (no --config, and no {default_file()})"


def no_secrets_known(parsed: argparse.Namespace) -> str | None:
    """Returns the warning of a command that shows what scripts saw, and has no configuration with its secrets."""
    if parsed.config is not None or default_file().exists():
        return None
    return f"no configuration is read (no --config, and no {default_file()}), so no secret of one is hidden"


async def settled(broker: Broker, names: Collection[str] | None, tell: Callable[[str], object]) -> None:
    """Waits for servers as long as they take; tells of each that takes a second.

    Args:
        broker: Has them.
        names: Their ids; None: all.
        tell: Is given the sentences.
    """
    async with in_background(tell_starting(broker, names, tell)):
        await broker.installed(tell, names)


async def tell_starting(broker: Broker, names: Collection[str] | None, tell: Callable[[str], object]) -> None:
    """Tells, a second from now, which of these servers still start: a line for each."""
    await asyncio.sleep(QUIET_SECONDS)
    for server_id in broker.catalog.who_starts:
        if names is None or server_id in names:
            tell(f"server {server_id} is starting")


async def settled_catalog(
    broker: Broker, names: Sequence[str] | None, tell: Callable[[str], object]
) -> Catalog:
    """Returns the catalog when these servers, or all, had their time to connect; tells which of all are missing, and
    why. (Of named ones the error tells that comes of it.)"""
    await settled(broker, None if names is None else [broker.catalog.id_of(name) for name in names], tell)
    for server_id, reason in broker.catalog.unavailable.items() if names is None else ():
        tell(f"server {server_id} is not connected: {reason}")
    return broker.catalog


async def catalog_of(settings: Settings, names: Sequence[str] | None = None) -> tuple[Catalog, Broker]:
    """Connects to servers once, which are all where none is named. Returns their catalog, and the closed broker, which
    knows their outputs."""
    async with Broker(settings.without_workers()) as broker:
        return await settled_catalog(broker, names, say), broker
