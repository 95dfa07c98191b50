"""Team has the demo's local Python tools: a team's calendar, kept in this process."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from cellblock import tool

_HOURS_A_WEEK = {"mira": 32.0, "jonas": 24.0, "priya": 40.0, "tomasz": 16.0}
_DEFAULT_HOURS = 8.0
_HOURS_A_DAY = 8.0
_SATURDAY = 5


@dataclass
class Capacity:
    """Says what one person can take on in a week."""

    person: str
    hours: float


@tool()
def capacity(person: str) -> Capacity:
    """Hours that a person of the team has for issues this week."""
    return Capacity(person, _HOURS_A_WEEK.get(person, _DEFAULT_HOURS))


@tool()
def finish_date(start: date, hours: float) -> date:
    """The working day on which work of so many hours ends that starts on `start`."""
    if hours < 0:
        raise ValueError("hours must not be negative")
    day = start
    left = hours
    while left > _HOURS_A_DAY or day.weekday() >= _SATURDAY:
        if day.weekday() < _SATURDAY:
            left -= _HOURS_A_DAY
        day += timedelta(days=1)
    return day
