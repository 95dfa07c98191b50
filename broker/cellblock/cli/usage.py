"""What is said of a command line that is not taken: the commands that there are, or the one that was probably meant."""

from __future__ import annotations

import argparse
import re
import sys
from typing import NoReturn

EXIT_USAGE = 2


class _Parser(argparse.ArgumentParser):
    """argparse's, with help in place of bare usage where a command is missing, and a near miss for a wrong one."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong on standard error, and ends the program with exit code 2."""
        if re.search(r"are required: (COMMAND|ACTION)$", message):
            self.print_help(sys.stderr)
            self.exit(EXIT_USAGE)
        wrong = re.match(r"argument (?:COMMAND|ACTION): invalid choice: '(.*?)' \(choose from (.*+)", message)
        if wrong is not None:
            from cellblock.catalog.suggest import nearest_names

            name, known = wrong[1], re.findall(r"[\w-]+", wrong[2])
            nearest = nearest_names(name, known, 1)
            told = (
                f"Did you mean `{self.prog} {nearest[0]}`?" if nearest else f"There are: {', '.join(known)}."
            )
            self.exit(EXIT_USAGE, f"{self.prog}: there is no command {name}. {told}\n")
        super().error(message)


def make(prog: str, description: str) -> argparse.ArgumentParser:
    """A parser like this, and so are those of its commands."""
    return _Parser(prog=prog, description=description)
