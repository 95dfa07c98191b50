"""The world of the tasks: four servers over one folder, which each attempt gets anew, and what a task is judged by."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.evals import shop
from support.public_servers import node_entry

TASKS: Final = Path(__file__).with_name("tasks.toml")
INVOICES: Final = {
    f"invoices/2026-{n:02}.csv": f"item,eur\npaper,{n * 3}\nink,{n * 11}\n" for n in range(1, 13)
}
FILES: Final = {
    **INVOICES,
    "todo.txt": "buy ink\ncall C007\npay rent\n",
    "logs/app.log": "".join(
        f"2026-11-{n % 28 + 1:02} {'ERROR disk' if n % 9 == 4 else 'INFO request'} {n}\n" for n in range(400)
    ),
}


def servers_in(folder: Path) -> dict[str, Any]:
    """Makes the world in a folder, and gives its servers as clients configure them."""
    files, state = folder / "files", folder / "shop.json"
    for name, text in FILES.items():
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_text(text, "utf-8")
    state.write_text(json.dumps(shop.first_state()), "utf-8")
    return {
        "shop": {"command": sys.executable, "args": [shop.__file__, str(state)]},
        "tracker": {"command": sys.executable, "args": ["-P", "-m", "cellblock.app.cli.demo.tracker"]},
        "files": {**node_entry("server-filesystem", str(files))},
        "graph": {**node_entry("server-memory", env={"MEMORY_FILE_PATH": str(folder / "graph.jsonl")})},
    }


def is_right(task: Mapping[str, Any], folder: Path, answer: str) -> bool:
    """Judges an attempt by its effects and its answer: `check` is a Python expression of the task's author."""

    def text(name: str) -> str:
        file = folder / name
        return file.read_text("utf-8") if file.exists() else ""

    def shell(command: str) -> str:
        return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True).stdout

    def says(*words: object) -> bool:
        plain = answer.replace(",", "")
        return all(re.search(rf"(?<![\w.]){re.escape(str(word))}(?!\w)", plain) for word in words)

    names = {"answer": answer, "says": says, "text": text, "shell": shell}
    return bool(eval(task["check"], names | {"kept": lambda: json.loads(text("shop.json"))}))
