"""Rules of flows, made of the policy once: what each tool is, and what happens to a call that would carry some data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, cast

from cellblock.base.errors import ConfigError
from cellblock.base.json import is_array, is_object
from cellblock.base.kept import Newest
from cellblock.base.settings.policy import FlowRule, PolicySettings, Secrecy
from cellblock.base.settings.server import ServerConfig
from cellblock.run.flows.known import KINDS, destroys, kind_of, reads
from cellblock.run.flows.labels import (
    EVERYBODY,
    NOTHING,
    STRICTEST,
    THE_PERSON,
    UNSAID,
    Audience,
    Label,
    Stated,
    audience_of,
    may_see,
    secrecy_of,
)
from cellblock.run.policy.grants import fits
from cellblock.tools.catalog.model import ServerEntry, ToolEntry
from cellblock.tools.upstream.definitions import shown

if TYPE_CHECKING:
    from cellblock.tools.schemas.validation import InputValidator

KEPT_TOOLS: Final = 4_096
"""Bounds the tools of which it is kept what they are."""

OnAlways = Callable[[dict[str, Any]], None]

Then = Literal["allow", "ask", "deny"]

T = TypeVar("T")

_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.-]+(?::\d+)?(?=[/?#]|$)")

_RECEIVERS: Final = """
    to cc bcc recipient recipients email emails address phone number user users username assignee assignees channel
    channels channel_id chat chat_id room conversation thread thread_id dm url uri link href endpoint host hostname
    webhook webhook_url callback repo repository owner org organization project project_id project_key team
    workspace space page parent database bucket account branch visibility public share shared_with invite path
    destination target dest remote server domain
"""
RECEIVERS: Final = frozenset(_RECEIVERS.split())
"""Names arguments that say where something goes."""


@dataclass(frozen=True)
class ToolFlow:
    """Says what a tool is.

    Args:
        stated: What the policy and an overlay say of its results.
        otherwise: What results are as far as nobody has said it.
        loosens: Whether its server's own labels count before `otherwise`.
        sink: Who sees what a call's arguments say.
        destructive: Whether a call may destroy something.
        said_by: Where the least certain of it comes from, for people.
        name: The tool's name, for people.
    """

    stated: Stated
    otherwise: Label
    loosens: bool
    sink: Audience
    destructive: bool
    said_by: str
    name: str

    def result(self, by_server: Stated = UNSAID) -> Label:
        """Returns the label of a result, of which its server has said something, too."""
        if by_server is UNSAID:
            return self.plain
        found = self.stated.or_else(by_server) if self.loosens else self.stated
        label = found.label(self.otherwise)
        return label | by_server.label(label)

    @cached_property
    def plain(self) -> Label:
        """Gives the label of a result of which its server says nothing."""
        return self.stated.label(self.otherwise)


class Judged(NamedTuple):
    """Says what happens to a call, and why: half a sentence."""

    then: Then
    why: str = ""


class FlowRules:
    """Knows what tools are, and judges calls.

    Args:
        settings: The policy.
        servers: The configuration's servers, by name.
        on_always: Writes a rule that a person wants from now on before the others of the file; None: there is none.

    Raises:
        ConfigError: A rule has a JSON Schema that cannot be checked against.
    """

    def __init__(
        self,
        settings: PolicySettings,
        servers: Mapping[str, ServerConfig],
        on_always: OnAlways | None = None,
    ) -> None:
        self._on_always = on_always
        self.is_on = settings.flows != "off"
        self.guards = "guard" in settings.flows
        self._servers = servers
        self._trusts = frozenset(settings.trust_ifc)
        # Those that say more of a name first.
        self._labels = sorted(settings.labels.items(), key=lambda one: -len(one[0].replace("*", "")))
        self._rules = [_Rule(rule, index) for index, rule in settings.flow_rules.items()]
        self._tools = Newest[tuple[str, int], tuple[ToolEntry, ToolFlow]](KEPT_TOOLS)

    def of(self, server: ServerEntry, tool: ToolEntry) -> ToolFlow:
        """Says what a tool is."""
        key = server.server_id, id(tool)
        held = self._tools.get(key)
        if held is None or held[0] is not tool:
            held = self._tools[key] = tool, self._made(server, tool)
        return held[1]

    def may_know(self, server: ServerEntry, tool: ToolEntry, label: Label) -> bool:
        """Says whether those who see a call of a tool may know what has this label."""
        return not self.guards or may_see(self.of(server, tool).sink, label.secrecy)

    def allow_always(self, rule: str) -> None:
        """Puts a rule, as JSON, before all others, here at once and for good where there is a file."""
        self._rules.insert(0, _Rule(FlowRule.model_validate_json(rule), 0))
        if self._on_always is not None:
            self._on_always(json.loads(rule))

    def judge(self, server: ServerEntry, tool: ToolEntry, arguments: Any, label: Label) -> Judged:
        """Says what happens to a call of a run that knows what has this label."""
        flow = self.of(server, tool)
        for rule in self._rules:
            if rule.fits(server.server_id, tool, flow, arguments, label):
                return Judged(rule.then, f"rule {rule.number} of cellblock.policy.flows is for it")
        if not self.guards or server.is_scripts:
            # A script that is called begins with what its caller knows, and each of its calls is judged.
            return Judged("allow")
        leaks = not may_see(flow.sink, label.secrecy)
        destroys_for_strangers = flow.destructive and not label.trusted
        if leaks:
            return Judged(
                "ask", f"it may carry what is {_shown(label.secrecy)}, and {_seen_by(flow.sink)} it"
            )
        if destroys_for_strangers:
            return Judged("ask", "it may destroy something, and strangers may have written what led to it")
        return Judged("allow")

    def _made(self, server: ServerEntry, tool: ToolEntry) -> ToolFlow:
        name = f"{server.server_id}.{shown(tool.tool_name)}"
        if server.is_scripts:
            # A script tells nobody anything but by its own calls, and its label is its run's.
            return ToolFlow(UNSAID, NOTHING, False, THE_PERSON, False, "kept scripts", name)
        said = [label for pattern, label in self._labels if fits(pattern, server.server_id, tool)]
        overlay = None if tool.given is None else tool.given.flow
        by_user = [*said, overlay] if overlay is not None else said
        kind = kind_of(self._servers.get(server.config_name))
        known = None if kind is None else KINDS[kind]
        sinks: list[Secrecy | None] = [label.sink for label in by_user]
        secrecies: list[Secrecy | None] = [label.secrecy for label in by_user]
        sink, secrecy = _first(sinks), _first(secrecies)
        if sink is not None:
            seen_by = audience_of(sink)
        elif known is not None:
            seen_by = known.reads if reads(tool) else known.writes
        else:
            seen_by = EVERYBODY
        destructive = _first(label.destructive for label in by_user)
        trust = _first(one.trust for one in by_user)
        stated = Stated(
            None if secrecy is None else (audience_of(secrecy),),
            None if trust is None else trust == "trusted",
        )
        source = "unlabelled" if kind is None else f"known as {kind}"
        if None not in (secrecy, trust, sink):
            source = "policy" if overlay is None else "policy or overlay"
        return ToolFlow(
            stated,
            STRICTEST if known is None else Label(known.secrecy, trusted=False),
            server.server_id in self._trusts,
            seen_by,
            destroys(tool) if destructive is None else destructive,
            source,
            name,
        )


class _Rule:
    """Is one rule, ready to be asked."""

    def __init__(self, rule: FlowRule, index: int) -> None:
        self.number, self._arguments = index + 1, frozenset(rule.arguments or ())
        self.then: Then = rule.then
        self._secrecy = None if rule.secrecy is None else (audience_of(rule.secrecy),)
        self._trust = rule.trust
        self._pattern = rule.pattern
        self._sink: tuple[Audience] | None = None
        if rule.to is not None and self._pattern is None:
            self._sink = (audience_of(cast("Secrecy", rule.to)),)
        self._validator = validator_of(rule, self.number)

    def fits(self, server_id: str, tool: ToolEntry, flow: ToolFlow, arguments: Any, label: Label) -> bool:
        """Says whether the rule is for a call."""
        if self._pattern is not None and not fits(self._pattern, server_id, tool):
            return False
        allows = self.then == "allow"
        if self._secrecy is not None:
            secrecy = self._secrecy[0]
            if not (may_see(secrecy, label.secrecy) if allows else may_see(label.secrecy, secrecy)):
                return False
        if self._trust is not None and (self._trust == "trusted") is allows and label.trusted is not allows:
            return False
        if self._sink is not None:
            sink = self._sink[0]
            if not (may_see(flow.sink, sink) if allows else may_see(sink, flow.sink)):
                return False
        return self._has_values(arguments)

    def _has_values(self, arguments: Any) -> bool:
        from cellblock.tools.schemas.validation import Allowance

        if self._validator is None:
            return True
        if not is_object(arguments) or self._validator.check(arguments, Allowance(arguments)) is not None:
            return False
        return self.then != "allow" or receivers_in(arguments).keys() <= self._arguments


def receivers_in(arguments: Any) -> dict[str, Any]:
    """Returns the arguments of a call that say where it goes, or have something in them that does."""
    given: Mapping[str, Any] = arguments if is_object(arguments) else {}
    return {
        name: value
        for name, value in given.items()
        if value not in (None, "", [], {}) and _names(name, value)
    }


def rule_for(server_id: str, tool: ToolEntry, label: Label, arguments: Any) -> dict[str, Any]:
    """Makes the rule that allows calls like this one from now on, as it would stand in the file: what is no more secret
    nor less trusted, of this tool, to the same receivers; of a URL, to its host."""
    secrecy = secrecy_of(label.secrecy)
    rule: dict[str, Any] = {
        "from": [
            *([secrecy] if isinstance(secrecy, str) else secrecy),
            "trusted" if label.trusted else "untrusted",
        ],
        "to": f"{server_id}.{tool.tool_name}",
    }
    rule["arguments"] = {name: _wanted(value) for name, value in receivers_in(arguments).items()}
    return {**rule, "then": "allow"}


def _names(name: str, value: Any) -> bool:
    """Says whether an argument, or something in it, is of a name that says where something goes."""
    if name.replace("-", "_").lower() in RECEIVERS:
        return True
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        if is_object(one):
            if any(key.replace("-", "_").lower() in RECEIVERS for key in one):
                return True
            waiting.extend(one.values())
        elif is_array(one):
            waiting.extend(one)
    return False


def _wanted(value: Any) -> Any:
    if isinstance(value, str) and (found := _ORIGIN.match(value)):
        return {"type": "string", "pattern": f"^{re.escape(found[0])}(?:[/?#]|$)"}
    return value if is_array(value) else [value]


def validator_of(rule: FlowRule, number: int) -> InputValidator | None:
    """Makes what checks a rule's arguments; None where it names none. Raises ConfigError: It cannot be made."""
    if rule.arguments is None:
        return None
    from cellblock.tools.schemas.keywords import why_unrestricting
    from cellblock.tools.schemas.validation import InputValidator

    properties: dict[str, Any] = {}
    for name, wanted in rule.arguments.items():
        one = {"enum": wanted}
        several = {"type": "array", "minItems": 1, "items": one}
        properties[name] = {"anyOf": [one, several]} if is_array(wanted) else wanted
    schema = {"type": "object", "required": [*rule.arguments], "properties": properties}
    # What cannot be checked is not allowed by a rule, and is asked about or denied by one.
    validator = InputValidator(schema, label=f"rule {number} of policy.flows", strict=rule.then == "allow")
    given = [wanted for wanted in rule.arguments.values() if not is_array(wanted)]
    broken = None if validator.is_checking else validator.why_not
    for why in filter(None, [broken, *map(why_unrestricting, given)]):
        raise ConfigError(
            f"cellblock.policy.flows: the schemas of rule {number} cannot be used: {why}.",
            hint="Correct them; each must be a JSON Schema without remote references.",
        )
    return validator


def _first(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def _shown(audience: Audience) -> str:
    secrecy = secrecy_of(audience)
    return secrecy if isinstance(secrecy, str) else f"for {' and '.join(secrecy)} alone"


def _seen_by(audience: Audience) -> str:
    if audience is None:
        return "everybody may see"
    return f"{' and '.join(sorted(audience))} see" if audience else "the person alone sees"
