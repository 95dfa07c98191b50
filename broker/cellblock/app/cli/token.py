"""`token create|list|revoke`, named tokens for the clients of a daemon, and `keygen`, key pairs for worker hosts."""

from __future__ import annotations

import argparse
import re
import sys
import time
from datetime import UTC, datetime
from typing import Final

from cellblock.app.cli.arguments import UsageError, reading
from cellblock.app.cli.loading import of_state, store_to_read
from cellblock.app.cli.run import read_grants
from cellblock.app.cli.streams import answer, say, warn
from cellblock.base.settings.policy import NAMED, Grant
from cellblock.base.settings.settings import Settings
from cellblock.base.state_dir import prepare_state_dir
from cellblock.run.policy.named_tokens import EVERYTHING, Issued, NamedTokens
from cellblock.run.policy.policy import check_grant
from cellblock.run.request import read_request
from cellblock.tools.catalog.naming import policy_ids
from cellblock_worker.wire.keys import KeyFileError, make_key_file, read_key_file

UNITS: Final = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}

_SPAN: Final = re.compile(r"([1-9][0-9]{0,5})([mhdw])")


def create(parsed: argparse.Namespace) -> None:
    """Prints a new token.

    Raises:
        UsageError, InvalidRequest: `--grants` or `--expires` cannot be used.
        ConfigError: The grants do not fit the servers, or the token cannot be made.
    """
    settings = of_state(parsed)
    grants = EVERYTHING if parsed.grants is None else _grants(parsed.grants, settings)
    expires = None if parsed.expires is None else end_of(parsed.expires, time.time())
    prepare_state_dir(settings.state_dir)
    token = _tokens(settings).create(parsed.name, grants=grants, expires=expires)
    if settings.cellblock.http.oauth is not None:
        warn("cellblock.http.oauth is set: a daemon with it takes the tokens of that issuer alone.")
    if not parsed.json:
        say(
            "This is shown once and kept nowhere. Save it in a file of mode 600 for `cellblock connect --token-file`."
        )
    answer(parsed, {"name": parsed.name, "token": token, "expires": _iso(expires)}, f"{token}\n")


def list_all(parsed: argparse.Namespace) -> None:
    """Prints what tokens there are. Raises ConfigError: they cannot be read."""
    found = _tokens(of_state(parsed)).all()
    answer(
        parsed,
        [_as_json(issued) for issued in found],
        "".join(f"{_line(issued)}\n" for issued in found) or "There are no named tokens.\n",
    )


@reading(of_state)
async def revoke(parsed: argparse.Namespace, settings: Settings) -> None:
    """Revokes one token; `--everything` removes what its holder has. Raises ConfigError: It cannot be done."""
    _tokens(settings).revoke(parsed.name)
    sys.stdout.write(f"revoked {parsed.name}\n")
    if parsed.everything:
        # It imports what all stores need.
        from cellblock.app.cli.auth import remove_all_of

        sys.stdout.write(await remove_all_of(settings, NAMED + parsed.name))


def end_of(text: str, now: float) -> int:
    """Returns the end that `--expires` names, in seconds since 1970. Raises UsageError."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        return int(now) + int(span[1]) * UNITS[span[2]]
    try:
        end = datetime.fromisoformat(text)
        # A day or an hour without a zone is one of UTC, as `list` prints it.
        seconds = int((end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise UsageError(
            f"--expires {text[:100]!r}: write a span such as 12h, 30d or 8w, or a day such as 2027-01-31."
        ) from None
    if seconds <= now:
        raise UsageError(f"--expires {text[:100]!r}: this is over already.")
    return seconds


def _tokens(settings: Settings) -> NamedTokens:
    return NamedTokens(store_to_read(settings))


def _grants(text: str, settings: Settings) -> Grant:
    section = settings.cellblock
    grant = read_request({"code": "", "grants": read_grants(text)}, section).grants or EVERYTHING
    check_grant(grant, policy_ids(settings.servers))
    return grant


def _iso(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _as_json(issued: Issued) -> dict[str, object]:
    return {
        "name": issued.name,
        "created": _iso(issued.created or None),
        "expires": _iso(issued.expires),
        "grants": issued.grants.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        "problem": issued.problem,
    }


def _line(issued: Issued) -> str:
    parts = [f"{issued.name}: made {_iso(issued.created)}" if issued.created else issued.name]
    if issued.expires is not None:
        parts.append(f"ends {_iso(issued.expires)}")
    if issued.grants != Grant():
        parts.append("with grants of its own")
    if issued.problem is not None:
        parts.append(f"is not accepted: {issued.problem}")
    return "; ".join(parts)


def keygen(parsed: argparse.Namespace) -> None:
    """Prints the public key of the file, which is made when it is not there.

    Raises:
        UsageError: The file cannot be read or made.
    """
    try:
        pair = read_key_file(parsed.file) if parsed.file.exists() else make_key_file(parsed.file)
    except KeyFileError as error:
        raise UsageError(str(error)) from None
    sys.stdout.write(f"{pair.public}\n")
