"""Holds the manifests and the chart against each other, the schemas of Kubernetes and others, and policies."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import tempfile
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import yaml  # pyright: ignore[reportMissingModuleSource]

# Not in the environment that pyright sees.
utils: Any = importlib.import_module("kubernetes_validate.utils")
helm: Any = importlib.import_module("helm_python")
keda: Any = importlib.import_module("cloudcoil.models.keda.v1alpha1")
monitoring: Any = importlib.import_module("cloudcoil.models.prometheus_operator.v1")

SOURCE: Final = Path(__file__).resolve().parent.parent / "deploy" / "kubernetes"
VERSIONS: Final = 4
BOUND_SECONDS: Final = 120.0

OTHERS: Final = {
    "keda.sh/v1alpha1 ScaledObject": keda.ScaledObject,
    "monitoring.coreos.com/v1 ServiceMonitor": monitoring.ServiceMonitor,
}
"""Maps kinds that are not of Kubernetes to models that were made of their definitions."""

ALL: Final = {"keda": {"enabled": True}, "monitoring": {"enabled": True}}
SINGLE: Final = {"brokers": {"single": True}}
RENDERINGS: Final[dict[str, tuple[tuple[str, ...], dict[str, Any]]]] = {
    "several brokers": (("base",), {}),
    "several brokers, KEDA and Prometheus": (("keda", "monitoring"), ALL),
    "one broker": (("single",), SINGLE),
}
"""Maps what there is to its parts for Kustomize, and to its values for Helm: both must say the same."""

CHANGED: Final[dict[str, Any]] = {
    "image": "registry.example/cellblock:1",
    "namespaces": {"create": False},
    "brokers": {"memory": "2Gi", "replicas": 3, "maxReplicas": 9},
    "hosts": {"runtimeClassName": "gvisor", "capacity": 32},
}
TAKEN: Final = (
    '"registry.example/cellblock:1"',
    '"memory": "2Gi"',
    '"minReplicas": 3',
    '"maxReplicas": 9',
    '"runtimeClassName": "gvisor"',
    '"--capacity=32"',
)
"""Lists what the chart says with those values."""

HOST: Final = "Deployment.cellblock-hosts.cellblock-host"
BROKER: Final = "Deployment.cellblock.cellblock-broker"
ACCEPTED: Final = {
    ("CKV_K8S_8", HOST): "a host that cannot serve ends, and brokers drop one that is silent",
    ("CKV_K8S_9", HOST): "nothing is sent to a host: it dials",
    ("CKV_K8S_31", HOST): "its profile lets bubblewrap make namespaces; RuntimeDefault does not",
    (
        "CKV_K8S_35",
        BROKER,
    ): "the configuration takes them by ${env:NAME}; worker hosts and servers do not inherit them",
} | {
    (check, one): why
    for one in (HOST, BROKER)
    for check, why in {
        "CKV_K8S_11": "a limit on CPU stalls a process that has the node to itself; requests share it",
        "CKV_K8S_15": "a tag of a release is not moved",
        "CKV_K8S_43": "the image, with its digest, is the operator's to name",
    }.items()
}
"""Says why a pod may do what a policy would rather not have. An entry that fits nothing any more is a fault."""

Objects = dict[str, dict[str, Any]]


def keyed(text: str) -> Objects:
    """Returns the objects of a stream of YAML by kind, namespace and name."""
    objects: Objects = {}
    for one in yaml.safe_load_all(text):
        if one:
            key = f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}"
            assert key not in objects, f"{key} is there twice"
            objects[key] = one
            if one["kind"] == "Deployment":
                # Kustomize puts what it has patched first; their order means nothing.
                one["spec"]["template"]["spec"]["volumes"].sort(key=itemgetter("name"))
    return objects


def by_kustomize(parts: tuple[str, ...]) -> Objects:
    """Returns the objects of parts, as `kubectl apply -k` sends them."""
    texts: list[str] = []
    for part in parts:
        done = subprocess.run(
            ["kubectl", "kustomize", str(SOURCE / part)],
            capture_output=True,
            text=True,
            timeout=BOUND_SECONDS,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"kubectl kustomize {part}: {done.stderr}")
        texts.append(done.stdout)
    return keyed("\n---\n".join(texts))


def by_helm(values: dict[str, Any]) -> Objects:
    """Returns the objects of the chart with values, as Helm's own engine renders it."""
    with helm.Chart.load(SOURCE / "chart") as chart:
        return keyed("\n---\n".join(chart.render(values=values, name="cellblock").values()))


def differences(name: str, plain: Objects, chart: Objects) -> list[str]:
    """Returns in which objects the two say something else."""
    return [
        f"{name}: Kustomize and Helm differ in {key}"
        for key in sorted(plain.keys() | chart.keys())
        if plain.get(key) != chart.get(key)
    ]


def against_schemas(objects: Objects, versions: list[str]) -> list[str]:
    """Returns what no server of these versions would take."""
    wrong: list[str] = []
    for key, one in objects.items():
        kind = f"{one['apiVersion']} {one['kind']}"
        if (model := OTHERS.get(kind)) is not None:
            # Unknown fields are left out of a model.
            read = model.model_validate(one).model_dump(mode="json", by_alias=True, exclude_unset=True)
            if read != one:
                wrong.append(f"{key} has a field that {kind} does not know")
            continue
        for version in versions:
            try:
                utils.validate(one, version, strict=True)
            except utils.ValidationError as error:
                wrong.append(f"{key} in {version}: {'.'.join(map(str, error.path))}: {error.message}")
    return wrong


def against_policies(renderings: dict[str, Objects]) -> tuple[int, list[str]]:
    """Returns how many policies hold, and what does not."""
    passed, wrong, used = 0, list[str](), set[tuple[str, str]]()
    for name, objects in renderings.items():
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump_all(objects.values(), file)
            file.flush()
            done = subprocess.run(
                ["checkov", "-f", file.name, "--framework", "kubernetes", "--skip-download", "-o", "json"],
                capture_output=True,
                text=True,
                timeout=BOUND_SECONDS,
                check=False,
            )
        said = json.loads(done.stdout)
        passed += said["summary"]["passed"]
        for found in said["results"]["failed_checks"]:
            place = (found["check_id"], found["resource"])
            used.add(place)
            if place not in ACCEPTED:
                wrong.append(f"{name}: {found['resource']}: {found['check_id']}: {found['check_name']}")
    wrong += [f"{check} is accepted of {one} for nothing" for check, one in sorted(ACCEPTED.keys() - used)]
    return passed, wrong


def main() -> int:
    """Returns 0 when all fits."""
    wrong: list[str] = []
    rendered = {name: by_helm(values) for name, (_, values) in RENDERINGS.items()}
    kubectl = shutil.which("kubectl") is not None
    for name, (parts, _) in RENDERINGS.items():
        if kubectl:
            wrong += differences(name, by_kustomize(parts), rendered[name])
    changed = rendered["other values"] = by_helm(CHANGED)
    said = json.dumps(changed)
    wrong += [f"the chart does not take {word}" for word in TAKEN if word not in said]
    wrong += ["the chart makes namespaces without being asked"] * any("Namespace" in key for key in changed)
    versions: list[str] = list(dict.fromkeys(utils.all_versions()))[-VERSIONS:]
    for name, objects in rendered.items():
        wrong += [f"{name}: {what}" for what in against_schemas(objects, versions)]
    passed, breaches = against_policies(rendered)
    wrong += breaches
    count = sum(map(len, rendered.values()))
    print(f"{len(rendered)} renderings by Helm {helm.helm_sdk_version()}, of {count} objects")
    print(
        "Kustomize's are the same" if kubectl else "kubectl is not installed: not compared with Kustomize's"
    )
    print(f"schemas of Kubernetes {', '.join(versions)}, {' and '.join(OTHERS)}")
    print(f"{passed} policies hold, {len(ACCEPTED)} are waived, each with its reason")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
