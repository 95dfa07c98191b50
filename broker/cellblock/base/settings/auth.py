"""Settings of OAuth logins to upstream HTTP servers say what `cellblock auth login` and the daemon need to know."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from cellblock.base.settings.sections import HttpUrl, Secret, Section, secret_of

Scope = Annotated[str, Field(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]+$")]


class ServerAuthSettings(Section):
    """Configures OAuth for one upstream server. None of it is needed where the authorization server registers clients
    itself.
    """

    grant: Literal["authorization_code", "client_credentials", "identity_assertion", "token_exchange"] = (
        "authorization_code"
    )
    """Says who logs in: a person in a browser (`cellblock auth login`), or Cellblock itself with the client's
    secret. The last two, with `"login": "each"`, go by who a person is at `http.oauth.issuer`: by its assertion
    (ID-JAG), or by an exchange of its ID token (RFC 8693)."""

    issuer: HttpUrl | None = None
    """Names the authorization server that the client is registered with; its secret goes to no other. Needed with
    one."""

    client_id: str | None = None
    """Names a client that is registered already, or its metadata document by the URL, where the authorization server
    takes such. Absent: dynamic registration."""

    client_secret: Secret | None = None
    """Holds the client's secret: itself, or `{"env": NAME}` or `{"file": PATH}`, which hold it. With `private_key_jwt`
    it is the client's private key (PEM). `client_secret_env` and `client_secret_file` mean the same."""

    client_auth_method: Literal["client_secret_basic", "client_secret_post", "private_key_jwt"] = (
        "client_secret_basic"
    )
    """Says how the secret is shown to the token endpoint; a private key is not, but signs (RFC 7523, section 2.2)."""

    redirect_port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    """Sets the port of the redirect to this machine, where the registered client names one; absent: any free one."""

    scopes: list[Scope] = Field(default_factory=list[Scope])
    """Lists the scopes to ask for beside those that the server asks for."""

    @model_validator(mode="after")
    def _consistent(self) -> ServerAuthSettings:
        given = self.client_secret is not None
        if given and (self.client_id is None or self.issuer is None):
            raise ValueError("a client secret needs `client_id`, and `issuer`: whom it may be shown to")
        if self.grant != "authorization_code" and not given:
            raise ValueError(f"the grant {self.grant} needs `client_id`, `issuer` and a client secret")
        if self.client_auth_method == "private_key_jwt" and self.grant != "client_credentials":
            raise ValueError("private_key_jwt needs the grant client_credentials")
        return self

    @property
    def goes_by_identity(self) -> bool:
        """Says whether it is enough to know who a person is."""
        return self.grant in ("identity_assertion", "token_exchange")

    def secret(self) -> str | None:
        """Returns the client's secret, read where it is kept; None without one.

        Raises:
            ConfigError: The variable is not set, or the file cannot be read.
        """
        return secret_of(self.client_secret)


class AuthSettings(Section):
    """Sets how Cellblock logs in to upstream servers."""

    keyring: Literal["auto", "off"] = "auto"
    """Says where tokens are kept. `auto` uses the system's keyring where there is one, else files of the state
    directory that only their owner can read. `off` uses those files."""

    servers: dict[str, ServerAuthSettings] = Field(default_factory=dict[str, ServerAuthSettings])
    """Holds settings of single servers, by their names in `mcpServers`."""

    def for_server(self, server: str) -> ServerAuthSettings:
        return self.servers.get(server, DEFAULT_SERVER_AUTH)


DEFAULT_SERVER_AUTH: Final = ServerAuthSettings()
