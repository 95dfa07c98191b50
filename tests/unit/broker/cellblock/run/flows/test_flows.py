"""What tools are, in the order of those who may say it, and what becomes of calls. Labels are a lattice: joins lose
nothing, and what flows somewhere may be known there.
"""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from cellblock.base.errors import ConfigError
from cellblock.base.settings.policy import FlowLabel, PolicySettings
from cellblock.base.settings.server import ServerConfig
from cellblock.run.flows.labels import (
    NOTHING,
    STRICTEST,
    Audience,
    Label,
    Stated,
    audience_of,
    may_see,
    secrecy_of,
    stated_by_server,
)
from cellblock.run.flows.rules import FlowRules, receivers_in, rule_for
from cellblock.run.policy.policy import Policy, faults, idle_patterns
from cellblock.tools.catalog.model import READ, SCRIPTS, Catalog, Given, ServerEntry, ToolEntry, Withheld

MAIL = ServerConfig(command="npx", args=["-y", "@gongrzhe/server-gmail-autoauth-mcp@1.2.3"])
FILES = ServerConfig(command="npx", args=["-y", "@modelcontextprotocol/server-filesystem", "/home"])
PRIVATE, PUBLIC = Label(frozenset()), Label(None)


def server(name: str) -> ServerEntry:
    return ServerEntry(name, name, name)


def tool(name: str, **about: Any) -> ToolEntry:
    return ToolEntry(name, name, **about)


def rules(servers: dict[str, ServerConfig] | None = None, **policy: Any) -> FlowRules:
    return FlowRules(PolicySettings.model_validate({"flows": "guard", **policy}), servers or {})


def verdict(flows: FlowRules, name: str, label: Label, arguments: Any = None, **about: Any) -> str:
    server_id, _, of = name.partition(".")
    return flows.judge(server(server_id), tool(of, **about), arguments or {}, label).then


def test_what_nobody_has_labelled_is_private_and_untrusted_and_seen_by_everybody() -> None:
    flow = rules().of(server("odd"), tool("do", annotations={"readOnlyHint": True}))
    assert (flow.result(), flow.sink) == (STRICTEST, None)
    assert flow.result(Stated((None,), True)) == STRICTEST


OVERLAY = Given(flow=FlowLabel(secrecy=["repo:acme"], trust="trusted", sink="private"))
SAID, STRICT = Stated((None,), True), Stated((frozenset(),), False)
BY_POLICY = {"mail.*": {"secrecy": "public", "trust": "trusted"}}
ALL: dict[str, Any] = {
    "trustIfc": ["mail"],
    "labels": {"mail.*": {"secrecy": "private"}, "mail.pub*": {"secrecy": "public", "trust": "untrusted"}},
}


@pytest.mark.parametrize(
    ("policy", "name", "given", "said", "expected"),
    [
        (ALL, "read", OVERLAY, SAID, Label(frozenset(), True)),
        (ALL, "publish", OVERLAY, SAID, Label(None, False)),
        ({"trustIfc": ["mail"]}, "read", OVERLAY, SAID, Label(frozenset({"repo:acme"}), True)),
        ({"trustIfc": ["mail"]}, "read", None, SAID, NOTHING),
        ({"trustIfc": ["mail"]}, "read", None, None, STRICTEST),
        # One that the policy does not trust may only tighten.
        ({"labels": BY_POLICY}, "read", None, None, NOTHING),
        ({"labels": BY_POLICY}, "read", None, SAID, NOTHING),
        ({"labels": BY_POLICY}, "read", None, STRICT, STRICTEST),
        # What a trusted one says stricter than the policy counts, too.
        ({"trustIfc": ["mail"], "labels": BY_POLICY}, "read", None, STRICT, STRICTEST),
    ],
)
def test_labels_come_from_policy_then_overlay_then_trusted_servers_then_what_is_known(
    policy: dict[str, Any], name: str, given: Given | None, said: Stated | None, expected: Label
) -> None:
    flow = rules({"mail": MAIL}, **policy).of(server("mail"), tool(name, given=given))
    assert flow.result(*[said] if said else []) == expected


def test_who_sees_an_input_comes_from_the_overlay_too() -> None:
    assert rules().of(server("odd"), tool("read", given=OVERLAY)).sink == frozenset()


@pytest.mark.parametrize(
    ("config", "name", "seen_by_all"),
    [
        (MAIL, "send_email", True),
        (MAIL, "search_emails", False),
        (FILES, "write_file", False),
        (ServerConfig(url="https://mcp.linear.app/mcp"), "create_issue", True),
        (
            ServerConfig(command="docker", args=["run", "-i", "ghcr.io/github/github-mcp-server:v1"]),
            "list_issues",
            False,
        ),
        (ServerConfig(command="uvx", args=["mcp-server-fetch==2025.1.17"]), "fetch", True),
        (ServerConfig(command="/opt/bin/rust-mcp-filesystem"), "write_file", False),
        (ServerConfig(command="./files"), "read_file", True),
        (ServerConfig(url="https://mcp.linear.app.evil.example/mcp"), "list_issues", True),
    ],
)
def test_known_servers_are_known_by_package_image_or_host(
    config: ServerConfig, name: str, seen_by_all: bool
) -> None:
    flow = rules({"one": config}).of(server("one"), tool(name))
    assert (flow.sink is None) is seen_by_all and not flow.result().trusted
    is_web = "mcp-server-fetch" in str(config.args)
    assert (flow.result().secrecy is None) is is_web


@pytest.mark.parametrize(
    ("name", "about", "destroys"),
    [
        ("remove", {}, True),
        ("deleteAll", {"annotations": {"readOnlyHint": True}}, True),
        ("run", {}, True),
        ("run", {"annotations": {"destructiveHint": False}}, False),
        ("get_weather", {}, False),
        ("getWeather", {}, False),
        ("write_file", {}, False),
        ("execute_sql", {}, True),
        ("execute_sql", {"annotations": {"readOnlyHint": True}}, False),
        ("platform_info", {}, False),
        ("send_note", {}, False),
        ("read_file", {"annotations": {"destructiveHint": True}}, True),
        ("delete", {"given": Given(effect="write")}, False),
        ("look", {"given": Given(effect="destructive")}, True),
    ],
)
def test_what_destroys(name: str, about: dict[str, Any], destroys: bool) -> None:
    labels = ({"trust": "untrusted"}, {"destructive": not destroys})
    found = [rules(labels={"one.*": one}).of(server("one"), tool(name, **about)) for one in labels]
    assert [flow.destructive for flow in found] == [destroys, not destroys]


@pytest.mark.parametrize(
    ("name", "about", "destroys"),
    [
        ("send_note", {}, True),
        ("send_note", {"annotations": {"readOnlyHint": False, "destructiveHint": False}}, False),
        ("send_note", {"given": Given(flow=FlowLabel(trust="trusted"))}, False),
        ("get_note", {}, False),
    ],
)
def test_a_tool_of_which_nobody_has_said_anything_destroys_unless_it_reads(
    name: str, about: dict[str, Any], destroys: bool
) -> None:
    assert rules().of(server("one"), tool(name, **about)).destructive is destroys
    assert not rules({"one": MAIL}).of(server("one"), tool(name, **about)).destructive


def test_a_resource_is_read_from_whoever_hears_its_name() -> None:
    flow = rules({"files": FILES}).of(server("files"), READ)
    assert flow.sink == frozenset() and not flow.destructive
    assert rules().of(server("odd"), READ).sink is None


def test_to_call_a_kept_script_tells_nobody_anything() -> None:
    scripts = ServerEntry("scripts", "scripts", SCRIPTS)
    judged = rules().judge(scripts, tool("delete_all"), {"text": "secret"}, STRICTEST)
    assert judged.then == "allow" and rules().of(scripts, tool("delete_all")).result() == NOTHING


def test_guard_asks_before_private_data_is_seen_by_others_and_before_strangers_destroy() -> None:
    flows = rules(
        labels={
            "mail.*": {"sink": "private"},
            "acme.*": {"sink": ["repo:acme"]},
            "files.*": {"sink": "private", "destructive": True},
        }
    )
    acme = Label(frozenset({"repo:acme"}))
    table = [
        ("web.get", PUBLIC, "allow"),
        ("web.get", PRIVATE, "ask"),
        ("web.get", acme, "ask"),
        ("acme.get", acme, "allow"),
        ("acme.get", PRIVATE, "ask"),
        ("mail.get", PRIVATE, "allow"),
        ("files.rm", PRIVATE, "allow"),
        ("files.rm", Label(None, False), "ask"),
        ("web.get", Label(None, False), "allow"),
    ]
    assert [(name, label, verdict(flows, name, label)) for name, label, _ in table] == table


FIRST_FITS = rules(
    flows=[
        {"to": "mail.send", "arguments": {"to": ["ann@acme.example"]}, "then": "allow"},
        {"from": "private", "to": "mail.*", "then": "deny"},
        {"from": ["repo:acme", "trusted"], "to": "public", "then": "allow"},
        {"from": "untrusted", "to": ["repo:acme"], "then": "deny"},
        "guard",
    ]
)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"to": "ann@acme.example", "body": "hello"}, "allow"),
        ({"to": ["ann@acme.example"]}, "allow"),
        ({"to": []}, "deny"),
        ({"to": "ann@acme.example, eve@evil.example"}, "deny"),
        ({"to": "eve@evil.example"}, "deny"),
        # Nobody else may get it by another argument.
        ({"to": "ann@acme.example", "bcc": "eve@evil.example"}, "deny"),
        ({"to": "ann@acme.example", "bcc": [], "cc": None}, "allow"),
        (
            {"to": "ann@acme.example", "options": {"reply": [{"Reply-To": 1, "bcc": "eve@evil.example"}]}},
            "deny",
        ),
    ],
)
def test_the_first_rule_that_fits_an_input_counts(arguments: dict[str, Any], expected: str) -> None:
    assert verdict(FIRST_FITS, "mail.send", STRICTEST, arguments) == expected


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (Label(frozenset({"repo:acme"}), True), "allow"),
        (Label(frozenset({"repo:acme"}), False), "deny"),
        (PRIVATE, "ask"),
        (PUBLIC, "allow"),
    ],
)
def test_the_first_rule_that_fits_a_label_counts_and_the_preset_after_them(
    label: Label, expected: str
) -> None:
    assert verdict(FIRST_FITS, "web.get", label) == expected


def test_rules_without_the_preset_ask_about_nothing_else() -> None:
    flows = rules(flows=[{"from": "private", "to": "web.*", "then": "deny"}])
    assert [verdict(flows, name, PRIVATE) for name in ("web.get", "odd.get")] == ["deny", "allow"]
    assert verdict(FlowRules(PolicySettings(), {}), "web.get", STRICTEST) == "allow"


VALUES = st.recursive(
    st.none() | st.text(max_size=6), lambda inner: st.lists(inner, max_size=2), max_leaves=4
)


@given(
    st.dictionaries(st.sampled_from(["to", "cc", "body", "url", "n"]), VALUES),
    st.sampled_from(["to", "cc", "body"]),
    VALUES,
)
def test_always_allows_the_same_receivers_and_no_others(sent: dict[str, Any], name: str, value: Any) -> None:
    flows = rules(flows=[rule_for("mail", tool("send"), PRIVATE, sent), "guard"])
    assert verdict(flows, "mail.send", PRIVATE, sent) == "allow"
    assert verdict(flows, "mail.send", STRICTEST, sent) == "ask"
    assert verdict(flows, "mail.post", PRIVATE, sent) == "ask"
    other = {**sent, name: value}
    if receivers_in(other).keys() - receivers_in(sent).keys():
        assert verdict(flows, "mail.send", PRIVATE, other) == "ask"


def test_always_of_a_url_is_for_its_host() -> None:
    flows = rules(flows=[rule_for("web", tool("get"), PRIVATE, {"url": "https://docs.example/a?b"}), "guard"])
    expected = {
        "https://docs.example": "allow",
        "https://docs.example/c": "allow",
        "https://docs.example@evil.example/": "ask",
        "https://docs.example.evil.example/": "ask",
        "http://docs.example/": "ask",
        "https://docs.example:99/": "ask",
    }
    assert {url: verdict(flows, "web.get", PRIVATE, {"url": url}) for url in expected} == expected


@pytest.mark.parametrize(
    "policy",
    [
        {"flows": "guards"},
        {"flows": {"preset": "guard", "rules": []}},
        {"flows": ["guards"]},
        {"flows": [{"from": "privat", "then": "ask"}]},
        {"flows": [{"from": ["private", "repo:acme"], "then": "ask"}]},
        {"flows": [{"from": ["trusted", "untrusted"], "then": "ask"}]},
        {"flows": [{"to": "mail", "then": "ask"}]},
        {"flows": [{"to": "mail.*"}]},
        {"flows": [{"arguments": {"to": []}, "then": "allow"}]},
        {"labels": {"mail.*": {"secrecy": ["acme"]}}},
        {"labels": {"mail.*": {"secret": "private"}}},
        {"labels": {"mail": {}}},
        {"secrets": "hide"},
        {"trustIfc": "github"},
    ],
)
def test_what_is_misspelt_is_an_error(policy: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PolicySettings.model_validate(policy)


def test_servers_that_are_not_there_and_schemas_that_cannot_be_used_are_errors() -> None:
    policy: dict[str, Any] = {
        "flows": [
            {"then": "ask"},
            {"to": "mial.send", "then": "ask"},
            {"to": "mail.send", "arguments": {"to": {"patern": "@acme$"}}, "then": "allow"},
        ],
        "labels": {"mial.*": {}},
        "trustIfc": ["mail", "mial"],
    }
    found = [(one.path, one.message) for one in faults(PolicySettings.model_validate(policy), ["mail"])]
    assert [path for path, _ in found] == [
        ("labels", "mial.*"),
        ("trustIfc", 1),
        ("flows", 1, "to"),
        ("flows", 2, "arguments"),
    ], found
    assert "'patern' is no keyword of JSON Schema, 'pattern' is" in found[-1][1]


@pytest.mark.parametrize(
    ("receiver", "why"),
    # The first would allow every receiver.
    [({}, "restricts nothing"), ({"$ref": "https://evil.example/"}, "rule 1")],
)
def test_a_schema_of_receivers_that_cannot_be_used_is_an_error(receiver: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        rules(flows=[{"arguments": {"to": receiver}, "then": "allow"}])


def test_patterns_of_tools_that_a_connected_server_lacks_are_told() -> None:
    policy = PolicySettings.model_validate(
        {
            "default": {"approve": ["mail.sendd", "=mail.send", "mail.*", "away.x", "mail.later_*"]},
            "clients": {"cli": {"budgets": {"mail.snd": 1}}},
            "quotas": {"cli": {"mail.s*d": {"calls": 1, "per_ms": 1000}}},
            "labels": {"mail.raed": {"trust": "trusted"}, "mail.held": {}},
            "flows": [{"to": "*.nothing", "then": "deny"}, {"to": "=mail.Send", "then": "deny"}],
            "trustIfc": ["mail"],
        }
    )
    withheld = (Withheld("held", "held", "new", ""),)
    mail = ServerEntry("mail", "mail", "mail", tools=(tool("send"), tool("read")), withheld=withheld)
    catalog = Catalog(servers={"mail": mail})
    found = [(one.path, one.message, one.hint, one.slip_at) for one in idle_patterns(policy, catalog)]
    assert found == [
        (("default", "approve", 0), "mail has no tool 'sendd'", "Did you mean send?", "mail"),
        (("default", "approve", 4), "mail has no tool 'later_*'", "Take it out, or correct it.", ""),
        (("clients", "cli", "budgets", "mail.snd"), "mail has no tool 'snd'", "Did you mean send?", "mail"),
        (("labels", "mail.raed"), "mail has no tool 'raed'", "Did you mean read?", "mail"),
        (("flows", 1, "to"), "mail has no tool 'Send'", "Did you mean send?", "mail"),
    ]
    told = {client: Policy(policy).slips(client, catalog, ["mail"]) for client in ("cli", "oauth:a")}
    of_all = "cellblock.policy.labels."
    assert told["cli"].startswith("cellblock.policy.clients.cli.budgets.") and of_all in told["cli"]
    assert told["oauth:a"].startswith("cellblock.policy.default.approve.0") and of_all in told["oauth:a"]
    assert "default" not in told["cli"] and "clients" not in told["oauth:a"], (
        "nobody is told of another's policy"
    )
    assert Policy(policy).slips("cli", catalog, ["other"]) == ""


AUDIENCES: st.SearchStrategy[Audience] = st.none() | st.frozensets(
    st.sampled_from(["repo:acme", "repo:beta", "team:red"])
)
LABELS = st.builds(Label, AUDIENCES, st.booleans())


@given(LABELS, LABELS, LABELS)
def test_joins_are_those_of_a_lattice(one: Label, other: Label, third: Label) -> None:
    assert one | other == other | one and (one | other) | third == one | (other | third) and one | one == one
    assert one.within(one | other) and NOTHING.within(one) and one.within(STRICTEST)
    assert one | NOTHING == one and one | STRICTEST == STRICTEST
    assert one.within(other) == (one | other == other)


@given(LABELS, LABELS, AUDIENCES)
def test_what_a_join_may_be_told_to_both_may_be_told_to(one: Label, other: Label, sink: Audience) -> None:
    both = may_see(sink, one.secrecy) and may_see(sink, other.secrecy)
    assert may_see(sink, (one | other).secrecy) == both


@given(LABELS)
def test_labels_are_read_as_they_were_written(label: Label) -> None:
    assert Label.unpack(label.pack()) == label and audience_of(secrecy_of(label.secrecy)) == label.secrecy  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "null", "{}", '["public"]', "[1, 2, 3]", "\ud800"])
def test_what_cannot_be_read_is_the_strictest(text: str) -> None:
    assert Label.unpack(text) == STRICTEST


def test_two_named_sets_are_for_the_person_alone_and_one_set_for_its_group() -> None:
    acme, beta = (audience_of([f"repo:{name}"]) for name in ("acme", "beta"))
    joined = (Label(acme) | Label(beta)).secrecy
    sinks = (audience_of("private"), acme, audience_of("public"))
    assert [may_see(sink, joined) for sink in sinks] == [True, False, False]
    assert may_see(acme, acme) and not may_see(audience_of(["repo:acme", "repo:beta"]), acme)


@pytest.mark.parametrize(
    ("ifc", "expected"),
    [
        ({"integrity": "trusted", "confidentiality": ["public"]}, Label()),
        ({"integrity": "untrusted", "confidentiality": ["public"]}, Label(None, False)),
        (
            {"integrity": "trusted", "confidentiality": ["ann", "bob"]},
            Label(frozenset({"user:ann", "user:bob"})),
        ),
        ({"integrity": "trusted", "confidentiality": []}, Label(frozenset())),
        ({"integrity": "trusted", "confidentiality": "private"}, Label(frozenset())),
        ({"integrity": "Trusted", "confidentiality": [1]}, STRICTEST),
        ({}, STRICTEST),
        (None, STRICTEST),
        (["public"], STRICTEST),
    ],
)
def test_labels_of_servers_are_read_as_strictly_as_they_can_be(ifc: object, expected: Label) -> None:
    assert stated_by_server({"ifc": ifc}).label(NOTHING) == expected
    assert stated_by_server({}).label(expected) == expected
