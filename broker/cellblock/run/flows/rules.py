"""Rules of flows, made of the policy once: what happens to a call that would carry some data, and what servers together
can read and tell."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from cellblock.base.errors import ConfigError, first_few
from cellblock.base.json import is_array, is_object
from cellblock.base.kept import Newest
from cellblock.base.settings.policy import FlowRule, PolicySettings, Secrecy
from cellblock.base.settings.server import ServerConfig
from cellblock.run.flows.known import ToolFlow, flow_of_tool
from cellblock.run.flows.labels import (
    Audience,
    Label,
    audience_of,
    may_see,
    secrecy_of,
)
from cellblock.run.policy.grants import fits
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.upstream.definitions import shown

if TYPE_CHECKING:
    from cellblock.tools.schemas.validation import InputValidator

KEPT: Final = 4_096
"""Bounds the tools of which it is kept what they are, and of how many labels what happens to their calls."""

OnAlways = Callable[[dict[str, Any]], None]

Then = Literal["allow", "ask", "deny"]

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

MAX_NAMED: Final = 5
"""Bounds the tools of one server that are named."""


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
        self.guards = "guard" in settings.flows
        self._rules = [_Rule(rule, index) for index, rule in settings.flow_rules.items()]
        self._settings, self._servers = settings, servers
        self._tools = Newest[tuple[str, int], tuple[ToolEntry, ToolFlow]](KEPT)
        self._judgings = Newest[tuple[str, int, Label], tuple[ToolEntry, Sequence[_Rule], Judged]](KEPT)

    def of(self, server: ServerEntry, tool: ToolEntry) -> ToolFlow:
        """Says what a tool is."""
        key = server.server_id, id(tool)
        held = self._tools.get(key)
        if held is None or held[0] is not tool:
            held = self._tools[key] = tool, flow_of_tool(self._settings, self._servers, server, tool)
        return held[1]

    def may_know(self, server: ServerEntry, tool: ToolEntry, label: Label) -> bool:
        """Says whether those who see a call of a tool may know what has this label."""
        return not self.guards or may_see(self.of(server, tool).sink, label.secrecy)

    def allow_always(self, rule: str) -> None:
        """Puts a rule, as JSON, before all others, here at once and for good where there is a file."""
        self._rules.insert(0, _Rule(FlowRule.model_validate_json(rule), 0))
        self._judgings.clear()
        if self._on_always is not None:
            self._on_always(json.loads(rule))

    def judge(self, server: ServerEntry, tool: ToolEntry, arguments: Any, label: Label) -> Judged:
        """Says what happens to a call of a run that knows what has this label."""
        key = server.server_id, id(tool), label
        held = self._judgings.get(key)
        if held is None or held[0] is not tool:
            held = self._judgings[key] = tool, *self._judging(server, tool, label)
        for rule in held[1]:
            if rule.has_values(arguments):
                return rule.judged
        return held[2]

    def _judging(self, server: ServerEntry, tool: ToolEntry, label: Label) -> tuple[Sequence[_Rule], Judged]:
        """Returns the rules that are for calls with some arguments, in their order, and what happens to all others."""
        flow, found = self.of(server, tool), list[_Rule]()
        for rule in self._rules:
            if rule.fits(server.server_id, tool, flow, label):
                if rule.validator is None:
                    return found, rule.judged
                found.append(rule)
        return found, self._guarded(server, flow, label)

    def _guarded(self, server: ServerEntry, flow: ToolFlow, label: Label) -> Judged:
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


class _Rule:
    """Is one rule, ready to be asked."""

    def __init__(self, rule: FlowRule, index: int) -> None:
        number, self._arguments = index + 1, frozenset(rule.arguments or ())
        self._allows = rule.then == "allow"
        self.judged = Judged(rule.then, f"rule {number} of cellblock.policy.flows is for it")
        self._secrecy = None if rule.secrecy is None else (audience_of(rule.secrecy),)
        self._trust = rule.trust
        self._pattern = rule.pattern
        self._sink: tuple[Audience] | None = None
        if rule.to is not None and self._pattern is None:
            self._sink = (audience_of(cast("Secrecy", rule.to)),)
        self.validator = validator_of(rule, number)

    def fits(self, server_id: str, tool: ToolEntry, flow: ToolFlow, label: Label) -> bool:
        """Says whether the rule is for calls of a tool, with some arguments."""
        if self._pattern is not None and not fits(self._pattern, server_id, tool):
            return False
        allows = self._allows
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
        return True

    def has_values(self, arguments: Any) -> bool:
        """Says whether these arguments are those that it is for."""
        from cellblock.tools.schemas.validation import Allowance

        if self.validator is None or not is_object(arguments):
            return False
        if self.validator.check(arguments, Allowance(arguments)) is not None:
            return False
        return not self._allows or receivers_in(arguments).keys() <= self._arguments


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


def overview(settings: PolicySettings, servers: Mapping[str, ServerConfig], catalog: Catalog) -> list[str]:
    """Returns a line for each server, and one for all of them."""
    rules = FlowRules(settings, servers)
    untrusted, private, sends = list[str](), list[str](), list[str]()
    lines: list[str] = []
    for server_id, server in catalog.servers.items():
        flows = [(tool.tool_name, rules.of(server, tool)) for tool in server.callable]
        told = [shown(name) for name, flow in flows if flow.sink is None]
        sources = sorted({flow.said_by for _, flow in flows})
        if any(not flow.result().trusted for _, flow in flows):
            untrusted.append(server_id)
        if any(flow.result().secrecy is not None for _, flow in flows):
            private.append(server_id)
        if told:
            sends.append(server_id)
        results = first_few(sorted({str(flow.result()) for _, flow in flows}), MAX_NAMED)
        tells = (
            f"everybody may see calls of {first_few(told, MAX_NAMED)}"
            if told
            else "not everybody may see its calls"
        )
        lines.append(f"{server_id} ({', '.join(sources)}): results are {results}; {tells}")
    if untrusted and private and sends:
        on = "policy.flows is on" if settings.flows != "off" else "nothing stops it: policy.flows is off"
        lines.append(
            f"Together they read what strangers write ({first_few(untrusted, MAX_NAMED)}), read what is private "
            f"({first_few(private, MAX_NAMED)}), and tell everybody ({first_few(sends, MAX_NAMED)}); {on}."
        )
    return lines


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
    from cellblock.tools.schemas.document import why_unrestricting
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


def _shown(audience: Audience) -> str:
    secrecy = secrecy_of(audience)
    return secrecy if isinstance(secrecy, str) else f"for {' and '.join(secrecy)} alone"


def _seen_by(audience: Audience) -> str:
    if audience is None:
        return "everybody may see"
    return f"{' and '.join(sorted(audience))} see" if audience else "the person alone sees"
