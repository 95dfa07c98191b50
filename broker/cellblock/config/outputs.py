"""Settings of outputs too large for an agent's context say from which size on they are kept, and for how long."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from cellblock.config.sections import MIB, Section


class OutputSettings(Section):
    """Sets what a front-end does with large results and logs. Off unless `inline_bytes` is given."""

    inline_bytes: Annotated[int, Field(ge=1024)] | None = None
    """Caps what a run's result and logs may take in its response together, in bytes of JSON. Of what is over it the
    response has a preview, and the whole is an MCP resource. Absent: responses are whole, whatever their size."""

    preview_bytes: Annotated[int, Field(ge=64, le=MIB)] = 2_000
    """Caps the preview of each output that is kept, beside the rest of the response: about 500 tokens. At most half of
    `inline_bytes`, which it is lowered to."""

    page_bytes: Annotated[int, Field(ge=1024, le=4 * MIB)] = 32 * 1024
    """Caps what one `resources/read` gives, in bytes: about 8,000 tokens."""

    expire_ms: Annotated[int, Field(ge=100, le=7 * 24 * 3_600_000)] = 30 * 60_000
    """Bounds how long an output is kept, in milliseconds."""

    client_bytes: Annotated[int, Field(ge=MIB)] = 64 * MIB
    """Caps the disk that one client may take, as `cellblock.policy` knows clients, in bytes; its oldest outputs go
    first."""

    total_bytes: Annotated[int, Field(ge=MIB)] = 256 * MIB
    """Caps the disk that all clients may take together, of all processes that serve with one state directory, in bytes;
    the oldest outputs go first."""

    @property
    def shown_bytes(self) -> int:
        """Returns the size of one preview."""
        return min(self.preview_bytes, (self.inline_bytes or 2 * self.preview_bytes) // 2)

    @model_validator(mode="after")
    def _client_within_total(self) -> OutputSettings:
        if self.client_bytes > self.total_bytes:
            raise ValueError(
                f"client_bytes {self.client_bytes} is over total_bytes {self.total_bytes}: lower it, or raise "
                "total_bytes"
            )
        return self

    def needed_bytes(self, max_message_bytes: int, max_log_bytes: int) -> int:
        """Returns what the largest result and the largest logs of one run take, in bytes of JSON."""
        # An escaped character takes six bytes for one, and each of at most 10,000 entries some 60 beside its message.
        return max_message_bytes + 6 * max_log_bytes + MIB
