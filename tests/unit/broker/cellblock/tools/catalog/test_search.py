"""Tool search on the tool lists of real servers: ranking, hostile text, order, bounds (section 4.2.5)."""

import json
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.types import search_words
from cellblock.types.search import STEP_TOOLS, SearchIndex
from cellblock.types.search_words import (
    FROM_SPEECH,
    GENERAL_FAR,
    GENERAL_FILE,
    GENERAL_NEAR,
    MAX_PHRASE_WORDS,
    MAX_QUERY_TERMS,
    PHRASE_SHARE,
    VERB_SHARE,
    Wanted,
    fold,
    stem,
    terms,
    wanted_by,
    word_groups,
)
from support.nesting import nested
from support.params import mostly
from support.recorded_catalogs import CATALOGS, recorded_catalog

# Measured 2026-11: tuned 0.851 / 0.985, held out 0.877 / 1.000. A little under, so that one query may move.
LEAST = {"tuned": (0.82, 0.95), "held_out": (0.84, 0.96)}


LIMIT = 20


@cache
def real_catalog() -> Catalog:
    return recorded_catalog(folders=CATALOGS)


@cache
def real_index() -> SearchIndex:
    return SearchIndex(real_catalog())


def times(catalog: Catalog, count: int) -> Catalog:
    servers = {
        f"{server_id}-{number}": server
        for number in range(count)
        for server_id, server in catalog.servers.items()
    }
    return Catalog(
        servers={name: replace(server, server_id=name, config_name=name) for name, server in servers.items()}
    )


@cache
def large_index() -> SearchIndex:
    return SearchIndex(times(real_catalog(), 5))


def catalog_of(**servers: list[ToolEntry]) -> Catalog:
    return Catalog(
        servers={name: ServerEntry(name, name, name, tools=tuple(tools)) for name, tools in servers.items()}
    )


def named(name: str, description: str | None = None) -> ToolEntry:
    return ToolEntry(name, name, description)


def found(index: SearchIndex, query: str, server_id: str | None = None, limit: int = 5) -> list[str]:
    return [
        f"{hit.server.server_id}/{hit.tool.tool_name}"
        for hit in index.search(query, server_id=server_id, limit=limit)
    ]


def relevance() -> list[dict[str, Any]]:
    return cast(
        "list[dict[str, Any]]",
        json.loads((Path(__file__).parents[5] / "fixtures" / "search_relevance.json").read_text("utf-8")),
    )


def test_relevance_set_is_sound() -> None:
    """What is accepted of another server, or is no tool, is never found, and so costs hits in the tests below."""
    tools = {f"{s.server_id}/{t.tool_name}" for s in real_catalog().servers.values() for t in s.tools}
    entries = relevance()
    assert len(tools) >= 100
    assert len({(entry["query"], entry.get("server_id")) for entry in entries}) == len(entries) >= 60
    assert {name for entry in entries for name in entry["accept"]} <= tools


@pytest.mark.parametrize("half", sorted(LEAST))
def test_relevance_on_real_catalogs(half: str) -> None:
    entries = [entry for entry in relevance() if entry["half"] == half]
    ranked = [found(real_index(), entry["query"], entry.get("server_id")) for entry in entries]
    hits = [[name in entry["accept"] for name in names] for entry, names in zip(entries, ranked, strict=True)]
    least_first, least_five = LEAST[half]
    assert sum(any(one[:1]) for one in hits) / len(hits) >= least_first
    assert sum(map(any, hits)) / len(hits) >= least_five


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("create_pull_request", "github/create_pull_request"),
        ("createPullRequest", "github/create_pull_request"),
        ("API-create-a-data-source", "notion/API-create-a-data-source"),
        ("browser_clcik", "playwright/browser_click"),
        ("sequentialthinkng", "sequential-thinking/sequentialthinking"),
        ("dropping relations from graphs", "memory/delete_relations"),
        ("getfilecontents", "github/get_file_contents"),
    ],
)
def test_names_in_other_spellings_stems_and_slips_come_first(query: str, expected: str) -> None:
    assert found(real_index(), query, limit=1) == [expected]


OTHERS = [named(f"other{i}", "Something else.") for i in range(30)]

RANKED: dict[str, tuple[dict[str, list[ToolEntry]], dict[str, list[str]]]] = {
    "an exact name beats any stuffed text": (
        {
            "evil": [named("get_item_get_item", "Get item get item get item.")],
            "good": [named("get_item", "Nothing. " + "Long unrelated prose. " * 100)],
        },
        {"get item": ["good/get_item", "evil/get_item_get_item"]},
    ),
    "of two names with the term the short one comes first": (
        {
            "one": [
                named("branch_protection_rule_details", "Same."),
                named("new_branch", "Same. Same same same."),
            ]
        },
        {"branch": ["one/new_branch", "one/branch_protection_rule_details"]},
    ),
    "more of the query beats a single rare term": (
        {"one": [named("quark", "Quark."), *(named(f"b{i}", "Cats, dogs.") for i in range(3))]},
        {"quark cats dogs": ["one/b0", "..."]},
    ),
    "synonyms come below what the query has said": (
        {"one": [named("remove_folder"), named("remove_directory")]},
        {
            "directories": ["one/remove_directory", "one/remove_folder"],
            "delete folder": ["one/remove_folder", "one/remove_directory"],
            "erase": ["one/remove_directory", "one/remove_folder"],
        },
    ),
    "phrases find what their words do not say": (
        {"one": [named("create_refund"), named("go_back"), named("count_money")]},
        {"give the customer the money back": ["one/create_refund", "..."]},
    ),
    "a word that tools are named with means itself first": (
        {"one": [named("run_build", "One."), named("create_item", "One.")]},
        {"build": ["one/run_build", "..."]},
    ),
    "and where none is, what it stands for": (
        {"one": [named("create_item", "One.")]},
        {"build": ["one/create_item"]},
    ),
    "of equal tools that of the server which is about it comes first": (
        {
            "mail": [named("search", "Search."), *(named(f"m{i}", "Of a letter.") for i in range(5))],
            "wiki": [named("search", "Search."), *(named(f"w{i}", "Of an article.") for i in range(5))],
        },
        {"search letters": ["mail/search", "..."], "search articles": ["wiki/search", "..."]},
    ),
    "a deprecated tool comes after what replaces it unless it is named": (
        {
            "one": [
                named("read_file", "Read a file. DEPRECATED: Use read_text_file instead."),
                named("read_text_file", "Read a file as text, in one of many encodings."),
                named("list_deprecated", "List a file's deprecated calls."),
            ]
        },
        {
            "read a file": ["one/read_text_file", "one/read_file", "..."],
            "read file": ["one/read_text_file", "one/read_file", "..."],
            "read_file": ["one/read_file", "..."],
            "deprecated calls": ["one/list_deprecated", "..."],
        },
    ),
    "words that are written apart, and abbreviations": (
        {"one": [named("set_timezone"), named("time_of_day"), named("navigate_back")]},
        {"time zone": ["one/set_timezone", "..."], "nav": ["one/navigate_back"]},
    ),
    "stop words count only alone": (
        {"one": [named("noise", "What is the what is the."), named("rain", "Weather.")]},
        {"what is the weather": ["one/rain"], "what is the": ["one/noise"]},
    ),
    "scripts other than Latin": (
        {
            "one": [
                named("t1", "读取文件的全部内容。"),
                named("t2", "创建一个新的页面。"),
                named("t3", "Открывает страницу в браузере."),
                named("t4", "Ouvre une fenêtre"),
            ]
        },
        {
            "文件内容": ["one/t1"],
            "新页面": ["one/t2", "..."],
            "СТРАНИЦУ": ["one/t3"],
            "страницы": ["one/t3"],  # another case of the noun, as a misspelling
            "fenetre": ["one/t4"],
        },
    ),
}
"""Maps what is shown to servers with their tools, and to what queries find: first of all, where "..." follows."""


@pytest.mark.parametrize("shown", RANKED)
def test_what_is_found_first(shown: str) -> None:
    servers, queries = RANKED[shown]
    index = SearchIndex(catalog_of(**servers, rest=OTHERS))
    for query, expected in queries.items():
        names = found(index, query)
        assert names == expected if expected[-1] != "..." else names[: len(expected) - 1] == expected[:-1]


def test_deprecated_tools_come_behind_all_that_is_relevant_and_before_what_hardly_fits() -> None:
    tools = [
        named("create_issue", "Create an issue in a repository. DEPRECATED: use add_issue."),
        named("create_issue_old", "This is deprecated. Create an issue."),
        named("add_issue", "Add an issue to a repository."),
        named("issue_create_many", "Create several issues at once."),
        named("new_issue_form", "Open the form for an issue that is to be created."),
        named("star", "Star something of a repository."),
    ]
    index = SearchIndex(catalog_of(one=tools, rest=OTHERS))
    hits = index.search("create an issue in the repository", limit=LIMIT)
    names = [hit.tool.tool_name for hit in hits]
    old = {"create_issue", "create_issue_old"}
    fits = {"add_issue", "issue_create_many"}
    assert max(map(names.index, fits)) < min(map(names.index, old)), names
    assert max(map(names.index, old)) < names.index("star"), names
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert len(SearchIndex(catalog_of(one=tools[:2])).search("create an issue", limit=LIMIT)) == 2


def test_every_field_is_searched_and_a_name_counts_most() -> None:
    def schema(name: str, note: str) -> dict[str, Any]:
        inner = {"type": "object", "properties": {name: {"type": "string", "description": note}}}
        return {"type": "object", "properties": {"list": {"type": "array", "items": {"anyOf": [inner]}}}}

    tools = [
        named("t1", "One. Two zebra."),
        ToolEntry("t2", "t2", None, input_schema=schema("zebra", "")),
        ToolEntry("t3", "t3", None, input_schema=schema("x", "a zebra")),
        named("t4", "Zebra."),
        named("zebra"),
        ToolEntry("t6", "t6", annotations={"title": "Zebra"}),
        ToolEntry("t7", "t7", input_schema={"properties": {"y": {"enum": ["zebra"]}}}),
    ]
    names = found(
        SearchIndex(catalog_of(main=[*tools, *OTHERS], zebra_shop=[named("t8")])), "zebra", limit=20
    )
    assert names[0] == "main/zebra"
    assert set(names) == {"main/zebra", "zebra_shop/t8", *(f"main/t{i}" for i in (1, 2, 3, 4, 6, 7))}


def test_server_restriction_and_limit() -> None:
    index = real_index()
    assert {hit.server.server_id for hit in index.search("list", server_id="slack", limit=LIMIT)} == {"slack"}
    assert index.search("list", server_id="no-such-server", limit=LIMIT) == []
    assert set(found(index, "create_branch")[:2]) == {"github/create_branch", "supabase/create_branch"}
    assert {
        hit.server.server_id for hit in index.search("create_branch", server_id="supabase", limit=LIMIT)
    } == {"supabase"}
    assert len(index.search("page", limit=LIMIT)) == LIMIT
    assert index.search("page", limit=3) == index.search("page", limit=LIMIT)[:3]


def test_best_first_and_ties_by_server_order_then_name() -> None:
    tools = (named("b_ping"), named("a_ping"))
    servers = {name: ServerEntry(name, "same", "same", tools=tools) for name in ("zeta", "alpha")}
    index = SearchIndex(Catalog(servers=servers))
    assert found(index, "ping") == ["zeta/a_ping", "zeta/b_ping", "alpha/a_ping", "alpha/b_ping"]
    scores = [hit.score for hit in real_index().search("create a page", limit=50)]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) > 0
    again = SearchIndex(real_catalog())
    for entry in relevance():
        assert found(again, entry["query"], limit=50) == found(real_index(), entry["query"], limit=50)


HOSTILE = {
    "empty": "",
    "blank": " \t\r\n",
    "punctuation": "!!! ... ??? \"'`",
    "fts operators": '" OR * NEAR(a b, 2) name:x^ AND NOT - + {a b}: ) (',
    "fts quotes": '""" OR tool_text MATCH "a"; DROP TABLE tool_text; --',
    "controls": "read\0file\x01\x1b[31m\x7f",
    "surrogates": "read \ud800 file \udfff\ud83d",
    "stop words": "what is the of to in",
    "one megabyte word": "a" * 1_000_000,
    "one megabyte of words": "get page " * 111_112,
    "one megabyte of ideographs": "读文" * 500_000,
    "combining marks": "e" + "\u0301" * 10_000,
    "ligatures": "\ufdfa" * 5_000,
    "emoji": "🔥📁 👩‍👩‍👧",
    "bidi": "\u202efile\u202c read",
    "every term misspelt": " ".join(f"brwsr{chr(97 + i)}xclik" for i in range(26)),
    "common words": "get list page create name id query string file url return type path number object text",
}


@pytest.mark.parametrize("name", mostly(list(HOSTILE)[::4], list(HOSTILE)))
def test_hostile_queries_never_raise_and_are_bounded(name: str) -> None:
    index = large_index()
    started = time.process_time()
    hits = index.search(HOSTILE[name], limit=LIMIT)
    assert time.process_time() - started < 1.0
    assert len(hits) <= LIMIT
    assert index.search("create pull request", limit=LIMIT)[0].tool.tool_name == "create_pull_request"


def test_an_index_that_is_made_in_steps_is_the_same() -> None:
    made: list[SearchIndex] = []

    def steps() -> Generator[object]:
        made.append((yield from SearchIndex.in_steps(times(real_catalog(), 5))))

    assert len(list(steps())) >= len(large_index()) // STEP_TOOLS - 1 > 5
    for query in ("create pull request", "delete a file", "no such thing at all"):
        assert found(made[0], query) == found(large_index(), query)


def test_query_syntax_is_text() -> None:
    index = real_index()
    assert found(index, 'create" OR "pull* NEAR(request)') == found(index, "create or pull near request")
    assert found(index, "name:create_issue")[0] == "github/create_issue"
    assert found(index, "read\0file", limit=3) == found(index, "read file", limit=3)


@given(text=st.text(st.characters()))
def test_no_text_raises(text: str) -> None:
    tool = ToolEntry(text, text, text[::-1], {"title": text}, {"properties": {text: {"description": text}}})
    assert len(real_index().search(text, limit=LIMIT)) <= LIMIT
    assert [hit.tool for hit in SearchIndex(catalog_of(one=[tool])).search(text, limit=LIMIT)] in ([], [tool])


def test_hostile_catalog_is_indexed_within_bounds() -> None:
    deep = nested(5_000, lambda schema: {"properties": {"x": schema}}, {"description": "needle"})
    wide = {"properties": {f"p{i}": {"description": "w " * 1000} for i in range(20_000)}}
    branchy = nested(
        10, lambda schema: {"anyOf": [schema] * 500, "oneOf": [schema] * 500}, {"properties": {"leaf": {}}}
    )
    schemas: list[Any] = [
        *(deep, wide, branchy, True, False, None, {"properties": []}),
        {"properties": {"a": None, "b": [1], "c": {"description": 5, "enum": {"x": 1}}}, "anyOf": 3},
    ]
    tools = [
        *(
            ToolEntry(f"tool_{i}", f"tool_{i}", "word " * 200_000, {"title": 9}, schema)
            for i, schema in enumerate(schemas)
        ),
        ToolEntry("n" * 1_000_000, "n", "\ud800" * 100_000),
        ToolEntry("", "_"),
    ]
    started = time.process_time()
    index = SearchIndex(catalog_of(one=tools))
    assert time.process_time() - started < 10.0
    assert len(index) == len(tools)
    assert len(index.search("tool", limit=LIMIT)) == len(schemas)


def test_nothing_to_find() -> None:
    empty, no_tools = SearchIndex(Catalog()), SearchIndex(catalog_of(one=[], two=[named("file")]))
    for index, server_id in ((empty, None), (empty, "x"), (no_tools, "one")):
        assert index.search("file", server_id=server_id, limit=LIMIT) == []
    assert found(no_tools, "file") == ["two/file"]
    assert real_index().search("qqqqqqqq", limit=LIMIT) == []


def seconds_of(work: Callable[[], object]) -> float:
    """CPU time of this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def test_a_thousand_tools_build_and_answer_quickly() -> None:
    catalog = times(real_catalog(), 5)
    build = min(seconds_of(lambda: SearchIndex(catalog)) for _ in range(3))
    index = large_index()
    index.search("warm the vocabulary of lettre pares", limit=LIMIT)
    took = sorted(seconds_of(partial(index.search, entry["query"], limit=LIMIT)) for entry in relevance())
    median, p95 = took[len(took) // 2], took[int(len(took) * 0.95)]
    print(f"\n{len(index)} tools: build {build * 1e3:.0f} ms, p50 {median * 1e3:.2f} p95 {p95 * 1e3:.2f} ms")
    assert len(index) > 1000
    # Several times what a quiet machine takes (55 ms, 0.6 ms, 1.7 ms): these guard against a change of order.
    assert build < 1.5
    assert median < 0.020
    assert p95 < 0.050


# ---- what a query asks for: words, stems, phrases, compounds; and the groups of words that stand for each other ----


LINES = [
    line
    for line in Path(search_words.__file__).with_name("search_words.txt").read_text("utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]


def test_every_line_is_a_group() -> None:
    for line in LINES:
        tools, colon, said = line.removeprefix("+ ").partition(":")
        words = [*tools.split(), *said.split()]
        assert tools.split() and not tools.startswith(" "), line
        assert bool(colon) == bool(said.strip()), line
        assert len(words) >= 2 and len(set(words)) == len(words), line
        assert "_" not in tools, line
        assert all(word.replace("_", "").isalnum() and word == word.lower() for word in words), line
        assert all(word.count("_") < MAX_PHRASE_WORDS for word in words), line
    assert len(set(LINES)) == len(LINES)


def test_words_stand_for_each_other_less_than_for_themselves() -> None:
    related = word_groups().related
    assert related["bill"]["invoic"] > related["invoic"]["bill"] > 0
    for word, shares in related.items():
        assert word not in shares
        assert all(0 < share < 1 for share in shares.values())


def test_a_word_of_many_groups_stands_for_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "words.txt"
    path.write_text("# a comment\nread: open\nnavigate: open  # another\nlaunch: open start\ninvoice: bill\n")
    monkeypatch.setattr(search_words, "_FILE", path)
    monkeypatch.setattr(search_words, "GENERAL_FILE", tmp_path / "general.txt")
    (tmp_path / "general.txt").write_text("# a licence: of the list\ninvoice: account bill | reckoning\n")
    related, phrases, verbs = word_groups.__wrapped__()
    assert related["open"]["read"] == related["open"]["launch"] < related["bill"]["invoic"]
    assert set(related["start"]) == {"launch", "open"}
    assert phrases == verbs == frozenset()
    # What the general list says comes behind the groups of our own.
    assert related["bill"]["invoic"] == FROM_SPEECH
    assert related["account"] == {"invoic": GENERAL_NEAR} and related["reckon"] == {"invoic": GENERAL_FAR}


def test_verbs_of_intent_weigh_less_than_what_they_are_about() -> None:
    verbs = word_groups().verbs
    assert {"creat", "delet", "list"} <= verbs and "invoic" not in verbs
    assert {one.stem: one.weight for one in wanted_by("delete the invoice", (), (), verbs)} == {
        "delet": VERB_SHARE,
        "invoic": 1.0,
    }
    assert [one.weight for one in wanted_by("delete", (), (), verbs)] == [1.0], "there is nothing else"


def test_the_general_word_list_has_its_licence_with_it() -> None:
    text = GENERAL_FILE.read_text("utf-8")
    assert "WordNet 3.1" in text and "Princeton University" in text and "royalty is hereby granted" in text


def test_the_words_of_one_name_do_not_stand_for_each_other() -> None:
    related = word_groups().related
    assert "writ" not in related["fil"] and "fil" not in related["writ"]
    assert {"writ", "fil"} <= set(related["sav"])


def test_phrases_are_stemmed_by_word() -> None:
    assert {"tim_off", "money_back", "money_front"} & word_groups().phrases == {"tim_off", "money_back"}
    assert word_groups().related["money_back"]["refund"] > 0.5


def test_words_are_stemmed_and_asked_once_and_count_less_than_the_phrase_that_they_make() -> None:
    assert wanted_by("Issues, issue; closing", set(), set()) == [
        Wanted("issues", "issu", 1.0),
        Wanted("closing", "clos", 1.0),
    ]
    assert wanted_by("give the money back now", {"money_back"}, set()) == [
        Wanted("", "money_back", 1.0),
        Wanted("give", "giv", 1.0),
        Wanted("money", "money", PHRASE_SHARE),
        Wanted("back", "back", PHRASE_SHARE),
        Wanted("now", "now", 1.0),
    ]


@pytest.mark.parametrize(
    ("query", "phrases", "known", "asked"),
    [
        ("what is the weather", set[str](), set[str](), ["weather"]),
        pytest.param("what is the", set(), set(), ["what", "is", "the"], id="stop words alone"),
        ("", set(), set(), []),
        (" ?! ", set(), set(), []),
        pytest.param(
            "how do i sign in", {"sign_in"}, set(), ["sign_in", "sign"], id="a phrase of stop words"
        ),
        ("to do", {"to_do"}, set(), ["to_do"]),
        pytest.param(
            "time zones", set(), {"timezon"}, ["tim", "zon", "timezon"], id="one word in the catalog"
        ),
        ("time zones", set(), set(), ["tim", "zon"]),
    ],
)
def test_what_is_asked(query: str, phrases: set[str], known: set[str], asked: list[str]) -> None:
    assert [one.stem for one in wanted_by(query, phrases, known)] == asked


def test_long_queries_are_bounded() -> None:
    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(200)]
    phrases = {"_".join(pair) for pair in pairwise(words)}
    assert len(wanted_by(" ".join(words), set(), set())) == MAX_QUERY_TERMS
    assert len(wanted_by(" ".join(words), phrases, set())) <= MAX_QUERY_TERMS


@pytest.mark.parametrize(
    "words",
    [
        "issue issues",
        "query queries",
        "delete deletes deleted deleting",
        "copy copies",
        "stop stopped stopping stops",
        "merge merging merged",
        "status",
        "access",
    ],
)
def test_forms_of_one_word_have_one_stem(words: str) -> None:
    assert len({stem(word) for word in words.split()}) == 1


@pytest.mark.parametrize(
    "word", ["bus", "ids", "red", "ring", "class", "file2", "файлы", "文件", "", "status"]
)
def test_short_and_other_words_are_kept(word: str) -> None:
    assert stem(word) == word


def test_different_tools_keep_different_stems() -> None:
    words = ["organization", "organ", "relation", "relative", "migrate", "migration", "notify", "note"]
    assert len({stem(word) for word in words}) == len(words)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        *[("fenêtre", "fenetre"), ("ﬁle", "file"), ("Ｆｉｌｅ", "File"), ("Müller", "Muller")],
        *((text, text) for text in ("страницей", "ガギグ", "한국어", "读取", "读")),
    ],
)
def test_spellings_of_latin_are_folded_and_marks_of_other_scripts_kept(text: str, plain: str) -> None:
    assert fold(text) == plain
    assert "".join(terms(text))
