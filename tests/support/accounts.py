"""The account of a run that shares its budget with nobody."""

from cellblock.base.admission import DEFAULT_CLIENT
from cellblock.base.budget import ALL_BYTES, CLIENT_BYTES, Account, Budget


def account_of(client: str = DEFAULT_CLIENT) -> Account:
    return Account(Budget(CLIENT_BYTES, ALL_BYTES, "this client"), client)
