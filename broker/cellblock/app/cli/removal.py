"""What `scripts/install --remove` asks of the Cellblock that is to go: which clients still start it, and which copies
of files stay behind."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from glob import escape
from pathlib import Path
from typing import Final

from cellblock.app.cli.arguments import default_file
from cellblock.app.cli.clients import is_ours
from cellblock.app.cli.config_file import ConfigFile, real_path
from cellblock.app.cli.help import EXIT_NO
from cellblock.app.cli.importing.known import CLIENTS, Client
from cellblock.app.cli.main import main as run_command
from cellblock.app.config.client_permissions import shown_path
from cellblock.app.config.formats import value_at
from cellblock.app.config.named_secrets import mark_of, opened
from cellblock.base.errors import CellblockError, ConfigError

UNITS: Final = {
    ".config/systemd/user/cellblock.service": "systemctl --user disable --now cellblock",
    "Library/LaunchAgents/cellblock.plist": "launchctl bootout gui/$UID/cellblock",
}
"""Maps the files that `cellblock service` says to make to what ends the service; the file goes by hand, too."""


def main() -> int:
    """Refuses while something starts Cellblock, unless forced; else tells of the copies, and ends the daemon.

    Returns:
        The exit code.
    """
    left = {command: file for command, client, file in _files() if _starts_us(client, file)}
    units = {Path.home() / name: command for name, command in UNITS.items()}
    left |= {f"{command} && rm {file}": file for file, command in units.items() if file.exists()}
    if left and "--force" not in sys.argv:
        sys.stderr.write(
            "These still start Cellblock. First take it out, which gives back what was there before:\n"
        )
        sys.stderr.writelines(f"  {command}    # {shown_path(file)}\n" for command, file in left.items())
        return EXIT_NO
    files = {real_path(file) for file in (default_file(), *(file for *_, file in _files()))}
    for copy in sorted({copy for file in files for copy in file.parent.glob(f"{escape(file.name)}.*.bak")}):
        sys.stderr.write(f"{shown_path(copy)} stays: a copy from before a change, maybe with secrets.\n")
    return run_command(["stop"])


def _files() -> Iterator[tuple[str, Client, Path]]:
    """Yields the files that may start Cellblock, each with the command that takes it out."""
    for name, client in CLIENTS.items():
        for file in client.files():
            yield f"cellblock install {name} --uninstall", client, file
    for record in mark_of("").glob("0-" + "?" * 32):
        # Records of 0.1.0 have no third member, the path.
        path = Path([*json.loads(opened(record.name) or b"[]"), "", "", ""][2])
        for name, client in CLIENTS.items():
            if client.project and path.match(client.project):
                project = path.parents[client.project.count("/")]
                yield (
                    f"cellblock install {name} --uninstall --project {shlex.quote(str(project))}",
                    client,
                    path,
                )


def _starts_us(client: Client, path: Path) -> bool:
    try:
        data = ConfigFile(path).data
        return is_ours(value_at(data, client.key(data)))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return False


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CellblockError as error:
        sys.exit(str(error))
