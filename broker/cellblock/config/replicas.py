"""Settings of replicas say how the brokers behind one address reach each other."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cellblock.config.sections import Section


class ReplicaSettings(Section):
    """Makes this broker one of several behind one address, that know each other by the PostgreSQL of `state.url`. Each
    answers what is its own, and passes the rest on."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/@]+/?$")] | None = None
    """Says where the others reach this broker, and it alone, such as `https://${env:POD_IP}:7433`; when absent, at the
    address that it listens on. `SSL_CERT_FILE` of the environment names an authority of your own for `https`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")] | None = None
    """Names what each broker's certificate is good for, such as `cellblock.example.com`; when absent, the host of its
    `url`. Nobody gives a certificate for the address of a pod."""
