"""Secret_places is where the configuration has the secret of an OAuth client: in itself, a variable, or a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr

from cellblock.base.errors import ConfigError

SecretPlace = Annotated[dict[Literal["env", "file"], str], Field(min_length=1, max_length=1)]

Secret = SecretStr | SecretPlace

MAX_SECRET_CHARS: Final = 16 * 1024
"""Caps what is read of a file with a client secret."""


def secret_of(place: Secret | None) -> str | None:
    """Returns a client's secret, read where it is kept; None without one.

    Raises:
        ConfigError: The variable is not set, or the file cannot be read.
    """
    if place is None:
        return None
    if isinstance(place, SecretStr):
        return place.get_secret_value()
    if (name := place.get("env")) is not None:
        value = os.environ.get(name)
        if not value:
            raise ConfigError(
                f"The environment variable {name} is not set.", hint=f"Set {name} to the client's secret."
            )
        return value
    file = Path(place["file"])
    try:
        with file.expanduser().open(encoding="utf-8") as opened:
            return opened.read(MAX_SECRET_CHARS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The client secret cannot be read: {type(error).__name__} at {file}.",
            hint="Correct client_secret in the configuration.",
        ) from None
