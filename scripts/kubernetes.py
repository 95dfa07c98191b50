"""Holds the manifests and the chart against the schemas of Kubernetes, and against each other."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml  # pyright: ignore[reportMissingModuleSource]

# Not in the environment that pyright sees.
utils: Any = importlib.import_module("kubernetes_validate.utils")

SOURCE: Final = Path(__file__).resolve().parent.parent / "deploy" / "kubernetes"
PARTS: Final = ("base", "keda", "monitoring")
VERSIONS: Final = 4
HELM_BOUND_SECONDS: Final = 60.0

Objects = dict[str, dict[str, Any]]


def keyed(text: str) -> Objects:
    """Returns the objects of a stream of YAML by kind, namespace and name."""
    objects: Objects = {}
    for one in yaml.safe_load_all(text):
        if one:
            key = f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}"
            assert key not in objects, f"{key} is there twice"
            objects[key] = one
    return objects


def rendered(command: list[str]) -> Objects:
    """Returns the objects that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=HELM_BOUND_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return keyed(done.stdout)


def plain(part: str) -> Objects:
    """Returns a part's objects, by Kustomize where kubectl is installed, else as its files have them."""
    if kubectl := shutil.which("kubectl"):
        return rendered([kubectl, "kustomize", str(SOURCE / part)])
    listed = yaml.safe_load((SOURCE / part / "kustomization.yaml").read_text())["resources"]
    return keyed("\n---\n".join((SOURCE / part / name).read_text() for name in listed))


def wrong_in_chart(objects: dict[str, Objects], everything: Objects) -> tuple[list[str], Objects]:
    """Returns in which the chart, as Helm renders it, differs from the plain manifests, and its objects with other
    values."""
    helm = ["helm", "template", "cellblock", str(SOURCE / "chart")]
    with_all = rendered([*helm, "--set", "namespaces.create=true,keda.enabled=true,monitoring.enabled=true"])
    wrong = [
        f"the chart differs in {key}" for key in sorted(everything) if with_all.get(key) != everything[key]
    ]
    wrong += [f"only the chart has {key}" for key in sorted(with_all.keys() - everything.keys())]
    if rendered(helm) != objects["base"]:
        wrong.append("the chart with its defaults is not the base")
    changed = "hosts.runtimeClassName=gvisor,hosts.capacity=32,brokers.memory=2Gi,image=registry.example/cellblock:1"
    sets = rendered([*helm, "--set", changed])
    said = json.dumps(sets)
    for word in (
        '"runtimeClassName": "gvisor"',
        "--capacity=32",
        '"memory": "2Gi"',
        "registry.example/cellblock:1",
    ):
        if word not in said:
            wrong.append(f"the chart does not take {word}")
    return wrong, sets


def main() -> int:
    """Returns 0 when all fits."""
    objects = {part: plain(part) for part in PARTS}
    everything = {key: one for part in objects.values() for key, one in part.items()}
    has_helm = shutil.which("helm") is not None
    wrong, sets = wrong_in_chart(objects, everything) if has_helm else ([], {})
    versions: list[str] = list(dict.fromkeys(utils.all_versions()))[-VERSIONS:]
    unknown: set[str] = set()
    for version in versions:
        for key, one in {**everything, **{f"{key} (gvisor)": one for key, one in sets.items()}}.items():
            try:
                utils.validate(one, version, strict=True)
            except utils.ValidationError as error:
                wrong.append(f"{key} in {version}: {'.'.join(map(str, error.path))}: {error.message}")
            except utils.SchemaNotFoundError:
                unknown.add(f"{one['apiVersion']} {one['kind']}")
    by = "Kustomize" if shutil.which("kubectl") else "their files, as kubectl is not installed"
    by += " and by Helm" if has_helm else ""
    print(f"{len(everything)} objects, rendered by {by}; schemas of {', '.join(versions)}")
    if not has_helm:
        print("helm is not installed: its rendering of the chart was not looked at")
    print(f"without a schema there: {', '.join(sorted(unknown))}")
    for line in wrong:
        print(line, file=sys.stderr)
    return (
        1
        if wrong or unknown - {"keda.sh/v1alpha1 ScaledObject", "monitoring.coreos.com/v1 ServiceMonitor"}
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
