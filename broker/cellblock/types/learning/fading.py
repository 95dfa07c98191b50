"""Fades what was observed: a type says what results are like now, and older ones become a note.

Results are looked at in windows. What is known weighs less with each result that does not show it, the more so the
longer that is, and goes when a window has weighed `patience` against it. What comes back has gone too early: the
patience doubles, so shapes that take turns settle on a type that has all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from cellblock.types.learning.render import changes
from cellblock.types.learning.shape import NOTHING, Shape, bounded, join, refreshed

PATIENCE: Final = 50
"""Sets the number of results after which what none of them shows has faded, where something new was among them."""

STEADY: Final = 4
"""Multiplies the patience where nothing is new: what is rare, such as a field for errors, may just not have been
met."""

MAX_PATIENCE: Final = 64 * PATIENCE

WEEK_SECONDS: Final = 7 * 24 * 3600.0
"""Has the seconds of a week: a result counts once more for each week since its window began."""

MAX_WEIGHT: Final = 5.0
"""Bounds the weight of one result: at least ten are needed, however rarely a tool is used."""

MAX_NEWS: Final = 8
"""Bounds the new things of which each begins the window anew; with more, as where names are data, it must end all the
same."""


@dataclass(frozen=True, slots=True)
class Forms:
    """Holds what results of one tool looked like, by the way in which scripts got them.

    Attributes:
        value: Shape of the structured results.
        document: Shape of the JSON in results that were one text block with a JSON object or array.
        texts: Whether another text was among them.
        results: Whether a whole MCP result was.
    """

    value: Shape = NOTHING
    document: Shape = NOTHING
    texts: bool = False
    results: bool = False

    def joined(self, other: Forms) -> Forms:
        """Joins both forms, kept small."""
        return Forms(
            bounded(join(self.value, other.value)),
            bounded(join(self.document, other.document)),
            self.texts or other.texts,
            self.results or other.results,
        )

    def refreshed(self, recent: Forms) -> Forms:
        """Gives these forms without what newer results do not show."""
        if recent == Forms():
            return self
        return Forms(
            NOTHING if recent.value == NOTHING else refreshed(self.value, recent.value),
            NOTHING if recent.document == NOTHING else refreshed(self.document, recent.document),
            recent.texts,
            recent.results,
        )

    def changes_to(self, newer: Forms) -> list[str]:
        """Says how newer shapes of results differ, in a sentence for each place."""
        found = changes(self.value, newer.value) if NOTHING not in (self.value, newer.value) else []
        if NOTHING not in (self.document, newer.document):
            found += [f"JSON text {sentence}" for sentence in changes(self.document, newer.document)]
        for what, was, now in (
            ("structured content", self.value != NOTHING, newer.value != NOTHING),
            ("a JSON text", self.document != NOTHING, newer.document != NOTHING),
            ("a text that is no JSON", self.texts, newer.texts),
            ("a whole MCP result", self.results, newer.results),
        ):
            if was != now:
                found.append(what if now else f"{what} no more")
        return found


@dataclass(frozen=True, slots=True)
class Fading:
    """Holds how far the fading of one tool has come.

    Attributes:
        recent: What the results of this window looked like.
        weight: What they count together.
        since: When the window began, in seconds since the epoch; 0 when it has not.
        news: New things since everything known was last seen in one window; 0: nothing is expected to fade soon.
        patience: Weight after which what was not seen fades, with news.
        ever: All that was known before something faded; empty when nothing has.
        faded: When that was, last.
    """

    recent: Forms = Forms()
    weight: float = 0.0
    since: float = 0.0
    news: int = 0
    patience: int = PATIENCE
    ever: Forms = Forms()
    faded: float = 0.0

    def after(self, known: Forms, seen: Forms, samples: int, at: float) -> tuple[Forms, Fading]:
        """Gives what is known after some results, and how far the fading then has come.

        Args:
            known: What was known before.
            seen: The results.
            samples: Their number.
            at: When they came.
        """
        joined = known.joined(seen)
        if joined != known:
            made = self._with_news(seen, samples, at)
        else:
            since = self.since or at
            counts = min(1 + max(0.0, at - since) / WEEK_SECONDS, MAX_WEIGHT)
            recent = self.recent.joined(seen)
            made = replace(self, recent=recent, weight=self.weight + samples * counts, since=since)
            if made.weight < made._limit and recent == self.recent:
                return known, made
        left = joined.refreshed(made.recent)
        if left == joined:
            made = replace(made, news=0)
        if made.weight < made._limit:
            return joined, made
        made = replace(made, recent=Forms(), weight=0.0, since=0.0, news=min(made.news, 1))
        if left != joined:
            made = replace(made, ever=made.ever.joined(joined), faded=at)
        return left, made

    @property
    def _limit(self) -> int:
        return self.patience * (1 if self.news else STEADY)

    def _with_news(self, seen: Forms, samples: int, at: float) -> Fading:
        came_back = self.ever.joined(seen) == self.ever
        patience = min(2 * self.patience, MAX_PATIENCE) if came_back else self.patience
        if self.news >= MAX_NEWS:
            recent = self.recent.joined(seen)
            return replace(self, recent=recent, weight=self.weight + samples, patience=patience)
        return replace(
            self, recent=seen, weight=float(samples), since=at, news=self.news + 1, patience=patience
        )


NOT_FADING: Final = Fading()
