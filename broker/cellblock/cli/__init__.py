"""The `cellblock` command; `python -m cellblock.cli` for services and for environments without scripts."""


def main() -> int:
    """Runs one command, and ends quietly at a Ctrl-C, also while its modules load. Returns the exit code."""
    try:
        from cellblock.app.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130
