"""`python -m cellblock.fleet.ray` tells Ray, for the broker that started it, how many runs there are.

It is a process of its own, so that neither Ray's import nor its threads are in the broker. The first line of stdin is
the task, each further one the number of runs, and `leave` the end; each has a line of stdout for an answer.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from typing import Any, Final

from cellblock.fleet.ray.fleet import NAMESPACE, Plan, the_fleet, the_ray
from cellblock_worker.base.lifetime import die_with_parent

ANSWER_SECONDS: Final = 60.0
"""Bounds the wait for the fleet's answer: it is started first, with a Python environment of its own perhaps."""

LEAVE_SECONDS: Final = 3.0
"""Bounds the wait until the fleet has told the hosts to end."""

LEAVE: Final = "leave"

_ANY: Final = re.compile(r"^tcp://(?:0\.0\.0\.0|\[::\]|\*):")


def plan_of(task: dict[str, Any], address: str) -> Plan:
    """Returns the plan of a task.

    Args:
        task: As `RayHosts` makes it.
        address: By which Ray knows this machine.
    """
    given = task["settings"]
    options = given["options"]
    names = given["connect"] or [_ANY.sub(f"tcp://{address}:", task["endpoint"])]
    return Plan(
        arguments=("--connect", *names, *task["arguments"]),
        secret=bytes.fromhex(task["secret"]),
        least=given["hosts"][0],
        most=given["hosts"][1],
        capacity=task["capacity"],
        resources=options["resources"],
        runtime_env=options.get("runtime_env", {}),
        shrink_seconds=task["shrink_seconds"],
    )


def main() -> int:
    """Reports this broker's runs to the fleet until stdin ends. Returns the exit code."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer
    task = json.loads(sys.stdin.readline())
    ray, me, fleet = the_ray(), secrets.token_hex(8), None
    try:
        ray.init(
            address=task["settings"]["address"],
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
        )
        plan = plan_of(task, ray.util.get_node_ip_address())
        for line in sys.stdin:
            fleet = fleet or the_fleet(plan)
            try:
                if line.strip() == LEAVE:
                    ray.get(fleet.leave.remote(me), timeout=LEAVE_SECONDS)
                    return 0
                said = {"said": ray.get(fleet.report.remote(me, int(line)), timeout=ANSWER_SECONDS)}
            except ray.exceptions.RayActorError as error:
                # With its last broker a fleet ends; one whose node is gone is started again by Ray.
                said = {} if line.strip() == LEAVE else {"failed": _shortly(error)}
                fleet = None
            print(json.dumps(said), file=answers, flush=True)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        print(json.dumps({"failed": _shortly(error)}), file=answers, flush=True)
        return 1
    return 0


def _shortly(error: Exception) -> str:
    """Returns what is worth a line of a log: Ray's messages have whole tracebacks in them, whose last line says it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


if __name__ == "__main__":
    sys.exit(main())
