"""The issue's figure: at least 120 distinct hostile scripts and inputs, in named families."""

from security.families import ALL, FAMILIES
from security.requests import MALFORMED, ODD_BUT_FINE

LEAST = 120


def test_there_are_at_least_120_distinct_cases_with_unique_names() -> None:
    names = [case.name for case in ALL]
    assert len(set(names)) == len(names)
    assert len({(case.code, tuple(case.limits.items())) for case in ALL}) == len(ALL)
    assert len(ALL) >= LEAST


def test_each_family_has_its_name_and_more_than_a_token_case() -> None:
    assert set(FAMILIES) == {"escape", "exfiltration", "exhaustion", "naming", "upstream"}
    for family, cases in FAMILIES.items():
        assert all(case.name.startswith(f"{family}/") for case in cases)
        assert len(cases) >= 20, family
    assert len(MALFORMED) + len(ODD_BUT_FINE) >= 40
    assert not set(MALFORMED) & set(ODD_BUT_FINE)
