"""What tests of learning share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cellblock.base.settings.settings import SchemaSettings
from cellblock.base.store import LocalStore
from cellblock.types.learning.learner import Learner

BOUND = 60.0


@asynccontextmanager
async def learning(state_dir: Path | None, **settings: Any) -> AsyncIterator[Learner]:
    """A learner that has begun; at the end it has written all that it was offered."""
    made = Learner(
        SchemaSettings.model_validate(settings), None if state_dir is None else LocalStore(state_dir)
    )
    made.start()
    await made.loaded(BOUND)
    try:
        yield made
    finally:
        await made.close()
