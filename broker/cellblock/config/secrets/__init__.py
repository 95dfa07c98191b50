"""Secrets keeps credentials of the configuration out of logs, errors and responses.

In: the settings' secret values and any text. Out: the text without them. Start at `redaction`.
"""
