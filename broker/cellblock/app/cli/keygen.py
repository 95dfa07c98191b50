"""Keygen runs the command `keygen`: a file with a key pair, and its public key on standard output."""

from __future__ import annotations

import argparse
import sys

from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.help import EXIT_OK
from cellblock_worker.wire.keys import KeyFileError, make_key_file, read_key_file


def keygen(parsed: argparse.Namespace) -> int:
    """Prints the public key of the file, which is made when it is not there.

    Raises:
        UsageError: The file cannot be read or made.
    """
    try:
        pair = read_key_file(parsed.file) if parsed.file.exists() else make_key_file(parsed.file)
    except KeyFileError as error:
        raise UsageError(str(error)) from None
    sys.stdout.write(f"{pair.public}\n")
    return EXIT_OK
