"""All families of hostile scripts by name. `requests` and `secrets` have test modules of their own."""

from typing import Final

from security import cases_escape, cases_exfiltration, cases_exhaustion, cases_naming, cases_upstream
from security.cases import Case

FAMILIES: Final[dict[str, list[Case]]] = {
    "escape": cases_escape.CASES,
    "exfiltration": cases_exfiltration.CASES,
    "exhaustion": cases_exhaustion.CASES,
    "naming": cases_naming.CASES,
    # Last, since its last case leaves a server to be reconnected.
    "upstream": cases_upstream.CASES,
}

ALL: Final = [case for cases in FAMILIES.values() for case in cases]
