"""Completion: what bash, zsh and fish are given works in each of them, where it is installed, and asks this program."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.cellblock_zygote import forked_cellblock
from support.entries import CELLBLOCK, write_config


def printed(shell: str) -> str:
    done = subprocess.run(
        [forked_cellblock(), "completion", shell], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def by_bash(line: str, folder: Path) -> str:
    """What bash offers at the end of a line, by the function that the script has registered."""
    driver = f"""
        source {folder / "completion"}
        COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9
        read -ra COMP_WORDS <<< "$COMP_LINE"
        [[ "$COMP_LINE" == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        spec=$(complete -p cellblock)
        [[ $spec =~ -F\\ ([^ ]+) ]]
        "${{BASH_REMATCH[1]}}" cellblock "${{COMP_WORDS[COMP_CWORD]}}" ""
        printf '%s\n' "${{COMPREPLY[@]}}"
    """
    return run(["bash", "--norc", "-c", driver], folder)


def by_fish(line: str, folder: Path) -> str:
    """What fish offers; it writes an explanation behind a tab."""
    offered = run(["fish", "-c", f"source {folder / 'completion'}; complete -C {line!r}"], folder)
    return "\n".join(row.partition("\t")[0] for row in offered.splitlines())


def by_zsh(line: str, folder: Path) -> str:
    """What an interactive zsh offers when the tab key is pressed: all that its completion system is given to add.

    It sits in a terminal of its own, because its line editor does without one nothing.
    """
    functions, offered = folder / "functions", folder / "offered"
    functions.mkdir(exist_ok=True)
    shutil.copy(folder / "completion", functions / "_cellblock")
    (folder / ".zshrc").write_text(f"""
        fpath=({functions} $fpath)
        autoload -Uz compinit; compinit -u -D
        compadd() {{
            if [[ ${{@[1,(i)(-|--)]}} != *-(O|A|D)\\ * ]]; then
                typeset -a found; builtin compadd -A found "$@"; print -rl -- $found >> {offered}
            fi
            builtin compadd "$@"
        }}
        zle-line-init() {{ BUFFER={line!r}; CURSOR=$#BUFFER; zle complete-word; exit }}
        zle -N zle-line-init
    """)
    terminal = "zmodload zsh/zpty; zpty z zsh -i; while zpty -t z; do zpty -r -t z said; sleep 0.05; done"
    run(["zsh", "-f", "-c", terminal], folder)
    return offered.read_text() if offered.exists() else ""


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        env={
            "PATH": f"{forked_cellblock().parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "ZDOTDIR": str(folder),
        },
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SHELLS = {"bash": by_bash, "zsh": by_zsh, "fish": by_fish}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("cellblock co", ["completion", "config", "connect"]),
        ("cellblock run --time", ["--timeout-ms"]),
        ("cellblock run --timeout-ms ", []),
        ("cellblock run scr", ["script.js"]),
        ("cellblock serve --profile ", ["default", "extended", "proxy", "strict"]),
        ("cellblock import --from v", ["vscode"]),
        ("cellblock pins approve --config cellblock.json ", ["files", "wiki"]),
        ("cellblock pins approve --config missing.json ", []),
        ("cellblock pins approve ", ["usual"]),
        ("cellblock search --config cellblock.json --server w", ["wiki"]),
    ],
)
def test_what_a_shell_offers(shell: str, line: str, offered: list[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    servers = {"files": {"command": "x"}, "wiki": {"url": "http://x", "headers": {"K": "${NOT_SET}"}}}
    write_config(tmp_path, servers)
    usual = tmp_path / (
        "Library/Application Support/cellblock" if sys.platform == "darwin" else ".config/cellblock"
    )
    usual.mkdir(parents=True)
    write_config(usual, {"usual": {"command": "x"}})
    (tmp_path / "script.js").touch()
    (tmp_path / "completion").write_text(printed(shell))
    words = {word.strip() for word in SHELLS[shell](line, tmp_path).splitlines()} - {""}
    assert sorted(word for word in words if not word.startswith("-") or "--" in line[-8:]) == offered


def test_every_shell_is_given_something_of_its_own(tmp_path: Path) -> None:
    texts = {shell: printed(shell) for shell in ("bash", "zsh", "fish")}
    assert "#compdef cellblock" in texts["zsh"] and "complete" in texts["fish"]
    for shell, text in texts.items():
        assert "cellblock" in text
        if (program := shutil.which(shell)) is not None:
            file = tmp_path / shell
            file.write_text(text)
            assert subprocess.run([program, "-n", file], timeout=120).returncode == 0


def test_completion_does_not_load_what_it_does_not_need() -> None:
    loaded = "import sys, cellblock.app.cli.main; print(*(name in sys.modules for name in ('pydantic', 'mcp', 'zmq')))"
    done = subprocess.run(
        [CELLBLOCK.parent / "python", "-c", loaded], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["False"] * 3, done.stderr
