"""`cellblock schemas`: from a new overlay file to what agents are told, and forgetting what was observed."""

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from support.commands import in_this_process
from support.entries import plain_server, write_config

OVERLAY = """\
[tools.echo]
output = '{"type": "object"}'
examples = '''
[
  {"input": {"id": 1}},
  {"input": 7}
]
'''

[tools.ecko]
class = "read"

[tools.give]
json_text = true
output = '{"type": "array"}'
"""


def said(folder: Path, *words: str, code: int = 0) -> str:
    """What a command says of a configuration with one server."""
    config = write_config(folder, {"plain": plain_server()})
    done = in_this_process(*words, "--config", config, "--state-dir", folder / "state")
    assert done.code == code, done
    return done.err if code == 2 else done.out


def test_what_an_overlay_says_that_is_not_so_is_told(tmp_path: Path) -> None:
    state = tmp_path / "state"
    folder = state / "overlays"

    cellblock = partial(said, tmp_path)
    folder.mkdir(parents=True, mode=0o700)
    state.chmod(0o700)
    file = folder / "plain.toml"
    file.write_text(OVERLAY, "utf-8")
    (folder / "plane.toml").write_text("", "utf-8")
    assert "ecko" not in cellblock("config", "check"), "no server was ever connected: nothing is known"
    script = tmp_path / "script.js"
    calls = "await echo({ id: 1 }); await echo({ id: 2 }); await give({ id: 1 });"
    script.write_text(f'import {{ echo, give }} from "@codemode/servers/plain"; {calls}', "utf-8")
    cellblock("run", str(script))
    of_echo = [
        f"{file}:3:1: warning: example 2 does not fit the input of echo: The input must be object, but is number 7. "
        "Correct the example.",
        f"{file}:2:1: warning: 2 of 2 results of echo did not fit the output that is given; the newest: at the root: "
        "given object. Correct output, or take it out.",
    ]
    faults = [
        *of_echo,
        f"{file}:10:8: warning: plain has no tool ecko. Did you mean echo?",
        f"{file}:15:1: warning: 1 of 1 results of give did not fit the output that is given; the newest: the result is "
        "no JSON text. Correct output, or take it out.",
        f"{folder / 'plane.toml'}:1:1: warning: no server of this configuration has the name plane. "
        "Did you mean plain.toml?",
    ]
    told = cellblock("config", "check").splitlines()
    assert [re.sub("warning: tools.[a-z]+: ", "warning: ", line) for line in told[:-1]] == faults
    problems = json.loads(cellblock("config", "check", "--json"))["problems"]
    assert [(one["line"], one["column"], one["path"]) for one in problems][:3] == [
        (3, 1, "tools.echo"),
        (2, 1, "tools.echo"),
        (10, 8, "tools.ecko"),
    ]
    assert cellblock("schemas", "diff", "plain", "echo").splitlines() == [
        "It has not changed.",
        *(re.sub(r"^(\S+): warning: ", r"warning: \1: tools.echo: ", one) for one in of_echo),
    ]
    assert "Did you mean echo?" in cellblock("schemas", "diff", "plain", "ecko")
    report = json.loads(cellblock("doctor", "--json"))
    plain = [warning.replace(": warning", "", 1) for warning in faults]
    warnings = [re.sub(": tools.[a-z]+: ", ": ", one) for one in report["warnings"] if ".toml" in one]
    assert warnings == plain
    assert (
        "2 of 2 results did not fit what is given"
        in json.loads(cellblock("inspect", "plain.echo"))["output"]["note"]
    )
    file.write_text(OVERLAY.replace('{"type": "object"}', '{"type": "string"}'), "utf-8")
    assert "results of echo" not in cellblock("config", "check"), "counted anew for another schema"
    file.write_text("[tools.echo]\n clas = 1\n", "utf-8")
    assert f"{file}:2:2: error: tools.echo.clas: unknown key" in cellblock("config", "check", code=1)


def test_overlay_and_store_from_the_command_line(tmp_path: Path) -> None:
    cellblock = partial(said, tmp_path)
    assert "Nothing was observed yet" in cellblock("schemas", "clear", code=2)
    script = tmp_path / "script.js"
    script.write_text('import { echo } from "@codemode/servers/plain"; await echo({ id: 1 });', "utf-8")
    cellblock("run", str(script))
    exported: Any = json.loads(cellblock("schemas", "export"))["plain"]["echo"]
    assert (exported["source"], exported["samples"]) == ("observed", 1)
    assert cellblock("schemas", "diff", "plain", "echo") == "It has not changed.\n"

    file = Path(cellblock("schemas", "init", "plain").strip())
    assert "Observed from 1 result" in file.read_text("utf-8")
    assert "is there already" in cellblock("schemas", "init", "plain", code=2)
    overlay = '[tools.echo]\nclass = "read"\noutput = \'{"type": "object", "title": "Mine"}\'\n'
    file.write_text(overlay + 'examples = \'[{"input": {"id": 7}}]\'\n', "utf-8")
    told = json.loads(cellblock("inspect", "plain.echo"))
    assert (told["output"]["source"], told["output"]["samples"]) == ("given", 1)
    assert told["givenOutputSchema"]["title"] == "Mine" and told["outputSchema"] is None
    assert told["annotations"]["readOnlyHint"] is True
    assert told["inputSchema"]["examples"] == [{"id": 7}]
    assert '@example {"id": 7}' in told["declaration"]

    file.write_text("[tools.echo]\nclas = 1\n", "utf-8")
    assert f"{os.fspath(file)}:2:1: tools.echo.clas: unknown key" in cellblock("types", code=2)
    file.unlink()
    assert cellblock("schemas", "clear", "plain", "echo") == "forgot 1 tool\n"
    assert json.loads(cellblock("schemas", "export", "plain"))["plain"] == {}


def test_what_was_observed_goes_out_in_every_format(tmp_path: Path) -> None:
    cellblock = partial(said, tmp_path)
    script = tmp_path / "script.js"
    script.write_text('import { echo } from "@codemode/servers/plain"; await echo({ id: 1 });', "utf-8")
    cellblock("run", str(script))
    plain = json.loads(cellblock("schemas", "export"))["plain"]["echo"]
    assert plain["source"] == "observed" and set(plain["schema"]) >= {"contentSchema"}
    schema = {**plain["schema"]["contentSchema"], "description": plain["note"]}

    def echo(form: str) -> Any:
        made = json.loads(cellblock("schemas", "export", "plain", "--format", form))
        name = "mcp__plain__echo"
        assert made["outputs"][name]["source"] == "observed"
        return next(one for one in made["tools"] if one["name"] == name)

    assert echo("openai")["output_schema"] == schema
    assert echo("mcp")["outputSchema"]["anyOf"] == [schema, {}]
    assert "type Output = {" in echo("anthropic")["description"]
    document = json.loads(cellblock("schemas", "export", "--format", "json-schema"))["$defs"]
    assert document["mcp__plain__echo.output"]["contentSchema"] == plain["schema"]["contentSchema"]
    types = cellblock("schemas", "export", "--format", "typescript")
    assert (
        '// "plain.echo": observed. Observed from 1 result' in types
        and "echo(input?: {}): Promise<JsonText<" in types
    )
