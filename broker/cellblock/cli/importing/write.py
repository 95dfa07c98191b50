"""Write adds servers to Cellblock's configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from cellblock.cli.importing.plan import Plan
from cellblock.cli.own_file import OwnFile
from cellblock.config.file.edit import KeyPath
from cellblock.config.file.formats import SECTION_KEY
from cellblock.config.secrets.named_secrets import NamedSecrets

_BOUNDS: Final = (SECTION_KEY, "upstream", "servers")


def add_servers(target: OwnFile, plan: Plan) -> Path | None:
    """Writes the file with the servers of a plan, and its secrets into the keyring before that.

    Returns:
        The copy of the old file, or None when there was none.

    Raises:
        ConfigError: What is added makes the file wrong, it has changed since it was read, or cannot be written.
        KeyringError: The keyring does not keep a secret; the file is left as it was.
    """
    changes: dict[KeyPath, Any] = {target.place(name): entry for name, entry in plan.added.items()}
    for name, bounds in plan.bounds.items():
        changes |= {(*_BOUNDS, name, setting): value for setting, value in bounds.items()}
    target.change(changes)
    target.check()
    if plan.values:
        secrets = NamedSecrets()
        for name, value in plan.values.items():
            secrets.put(name, value)
    return target.write(private=True)
