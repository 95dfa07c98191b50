"""Secrets keeps credentials of the configuration out of logs, errors and responses, and keeps some in the keyring.

In: the settings' secret values and any text; the name of a secret. Out: the text without them; the named secret.
Start at `redaction`; `named_secrets` stands behind `cellblock secret`, and `keyrings` asks the system's keyring.
"""
