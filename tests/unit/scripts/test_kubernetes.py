"""What the manifests for Kubernetes grant, and whether they fit the programs that they start.

`scripts/kubernetes` renders them by Helm and Kustomize, and holds them against schemas and policies.
"""

import base64
import copy
import functools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cellblock.app.cli.parser import make_parser
from cellblock.app.config.load import parse_settings
from cellblock.base.settings.sections import HttpSettings
from cellblock.observe.metrics import Metrics, Tally
from cellblock_worker.host import remote
from cellblock_worker.wire.keys import make_key_file
from support.documents import ROOT, examples
from support.still_broker import StillBroker

DEPLOY = ROOT / "deploy" / "kubernetes"

NEEDS_KUSTOMIZE = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="no kubectl here, which brings Kustomize"
)

Object = dict[str, Any]

GIVEN = {
    "CELLBLOCK_STATE_URL": "postgresql://cellblock@db/cellblock",
    "CELLBLOCK_STATE_KEY": base64.b64encode(bytes(32)).decode(),
    "POD_IP": "192.0.2.7",
    "SSL_CERT_FILE": "/run/cellblock/authorities.crt",
}
"""Is what a pod's environment may be."""

DRAIN_MORE_SECONDS = 15
"""Is what the end of sessions and servers takes after `http.drain_ms`: docs/howto-replicas.md says 15 s."""

PLAIN = {"SSL_CERT_FILE"}
"""Names variables of which the value may stand in a manifest: a path."""

VOLUMES = {"name", "configMap", "secret", "emptyDir", "persistentVolumeClaim"}


def read(name: str) -> list[Object]:
    return list(YAML(typ="safe", pure=True).load_all((DEPLOY / name).read_text()))


@functools.cache
def base() -> list[Object]:
    return [one for name in ("namespaces", "broker", "hosts") for one in read(f"base/{name}.yaml")]


def the(kind: str, name: str, objects: list[Object] | None = None) -> Object:
    (found,) = [one for one in objects or base() if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def containers(pod: Object) -> Iterator[Object]:
    yield from pod["initContainers"] + pod["containers"]


def breaches(objects: list[Object]) -> list[str]:
    """What pods may that they need not: the standard `restricted` but for AppArmor of hosts, and more."""
    found: list[str] = []
    for deployment in (one for one in objects if one["kind"] == "Deployment"):
        name, pod = deployment["metadata"]["name"], deployment["spec"]["template"]["spec"]
        security = pod["securityContext"]
        of_pod = {
            "root": not security.get("runAsNonRoot") or not security.get("runAsUser"),
            "seccomp": security.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
            "AppArmor": security.get("appArmorProfile") and name != "cellblock-host",
            "token": pod.get("automountServiceAccountToken") is not False,
            "host's namespaces": any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")),
            "volumes": any(volume.keys() - VOLUMES for volume in pod["volumes"]),
        }
        found += [f"{name}: {what}" for what, is_breached in of_pod.items() if is_breached]
        for container in containers(pod):
            inside, resources = container["securityContext"], container.get("resources", {})
            of_container = {
                "privileges": (
                    inside.get("allowPrivilegeEscalation") is not False
                    or inside.get("readOnlyRootFilesystem") is not True
                    or inside.get("capabilities") != {"drop": ["ALL"]}
                    or inside.get("privileged")
                ),
                "resources": (
                    not {"cpu", "memory"} <= resources.get("requests", {}).keys()
                    or "memory" not in resources["limits"]
                ),
                "a value that may be secret": any(
                    "value" in one and one["name"] not in PLAIN for one in container.get("env", [])
                ),
            }
            whose = f"{name}: {container['name']}"
            found += [f"{whose}: {what}" for what, is_breached in of_container.items() if is_breached]
    policy = the("NetworkPolicy", "cellblock-host", objects)["spec"]
    reached = [
        {**peer["namespaceSelector"]["matchLabels"], **peer.get("podSelector", {}).get("matchLabels", {})}
        for rule in policy["egress"]
        for peer in rule.get("to", [{"namespaceSelector": {"matchLabels": {"anywhere": ""}}}])
    ]
    namespace = "kubernetes.io/metadata.name"
    if (
        policy["podSelector"] != {}
        or set(policy["policyTypes"]) != {"Ingress", "Egress"}
        or policy["ingress"] != []
        or reached
        != [
            {namespace: "cellblock", "app.kubernetes.io/name": "cellblock-broker"},
            {namespace: "kube-system", "k8s-app": "kube-dns"},
        ]
    ):
        found.append("hosts reach more than brokers and names")
    if any(one["kind"] == "Secret" for one in objects):
        found.append("a secret")
    return found


def test_pods_may_what_they_need() -> None:
    assert breaches(base()) == []


def pod_of(objects: list[Object], name: str) -> Object:
    return the("Deployment", name, objects)["spec"]["template"]["spec"]


def broker_of(objects: list[Object]) -> Object:
    return pod_of(objects, "cellblock-broker")["containers"][0]


def host_of(objects: list[Object]) -> Object:
    return pod_of(objects, "cellblock-host")


WEAKER: dict[str, Callable[[list[Object]], object]] = {
    "cellblock-host: root": lambda o: host_of(o)["securityContext"].pop("runAsUser"),
    "cellblock-host: seccomp": lambda o: host_of(o)["securityContext"].pop("seccompProfile"),
    "cellblock-host: token": lambda o: host_of(o).pop("automountServiceAccountToken"),
    "cellblock-host: host's namespaces": lambda o: host_of(o).update(hostPID=True),
    "cellblock-host: volumes": lambda o: host_of(o)["volumes"].append({"name": "x", "hostPath": {}}),
    "cellblock-broker: broker: privileges": lambda o: broker_of(o)["securityContext"].update(privileged=True),
    "cellblock-broker: broker: resources": lambda o: broker_of(o)["resources"]["limits"].clear(),
    "cellblock-broker: broker: a value that may be secret": lambda o: broker_of(o)["env"].append(
        {"name": "TOKEN", "value": "t"}
    ),
    "hosts reach more than brokers and names": lambda o: the("NetworkPolicy", "cellblock-host", o)["spec"][
        "egress"
    ].append({}),
    "a secret": lambda o: o.append({"kind": "Secret", "metadata": {"name": "s"}}),
}


@pytest.mark.parametrize(("what", "weaken"), WEAKER.items(), ids=WEAKER)
def test_what_grants_more_is_found(what: str, weaken: Callable[[list[Object]], object]) -> None:
    objects = copy.deepcopy(base())
    weaken(objects)
    assert breaches(objects) == [what]


def test_a_broker_is_started_with_arguments_that_it_takes_and_asked_where_it_answers() -> None:
    (container,) = pod_of(base(), "cellblock-broker")["containers"]
    parsed = make_parser().parse_args(container["args"])
    assert parsed.http == "0.0.0.0:7433" and parsed.token_file == Path("/run/cellblock/token")
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    files = (parsed.tls_cert, parsed.tls_key, parsed.config, parsed.token_file, parsed.state_dir)
    assert all({str(path), str(Path(path).parent)} & mounts for path in files)
    assert parsed.state_dir not in mounts, "a volume's own folder is root's, and open to all: it is refused"
    security = pod_of(base(), "cellblock-broker")["securityContext"]
    assert security["fsGroupChangePolicy"] == "OnRootMismatch", "keys stay closed to the group"
    for probe, path in (
        ("startupProbe", "/livez"),
        ("livenessProbe", "/livez"),
        ("readinessProbe", "/readyz"),
    ):
        assert container[probe]["httpGet"].items() >= {"path": path, "port": "mcp", "scheme": "HTTPS"}.items()
    names = {port["name"] for port in container["ports"]}
    for service in ("cellblock", "cellblock-brokers"):
        spec = the("Service", service)["spec"]
        labels = the("Deployment", "cellblock-broker")["spec"]["template"]["metadata"]["labels"]
        assert spec["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in spec["ports"]} <= names
    headless = the("Service", "cellblock-brokers")["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"], "hosts dial brokers that are not ready without a host"


def test_a_host_is_started_with_arguments_that_it_takes(tmp_path: Path) -> None:
    pair = make_key_file(tmp_path / "host.key")
    pod = pod_of(base(), "cellblock-host")
    (container,) = pod["containers"]
    assert container["command"] == ["python", "-m", "cellblock_worker"]
    words = [word.replace("$(BROKER_PUBLIC_KEY)", pair.public) for word in container["args"]]
    given = remote.read_arguments([word.replace("/run/cellblock", str(tmp_path)) for word in words])
    assert given.config.isolation == "required" and given.config.capacity == 16
    assert given.drain_seconds < pod["terminationGracePeriodSeconds"]
    limit = container["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert int(limit.removesuffix("Gi")) << 30 >= given.config.capacity * given.config.max_old_space_mb << 20


def test_disruptions_are_bounded_for_what_there_is() -> None:
    for name in ("cellblock-broker", "cellblock-host"):
        selector = the("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"]
        deployment = the("Deployment", name)
        assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
        assert (
            the("PodDisruptionBudget", name)["metadata"]["namespace"] == deployment["metadata"]["namespace"]
        )


def test_hosts_are_scaled_by_metrics_that_a_broker_exports() -> None:
    (scaled,) = read("keda/scaledobject.yaml")
    page = Metrics(Tally(), StillBroker()).page().decode()
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    names = {name for query in queries for name in re.findall(r"cellblock_\w+", query)}
    assert names == {"cellblock_pool_running", "cellblock_pool_queued", "cellblock_queue_wait_seconds_count"}
    assert all(re.search(rf"^{name} ", page, re.MULTILINE) for name in names)
    assert (
        the("Deployment", scaled["spec"]["scaleTargetRef"]["name"])["metadata"]["namespace"]
        == scaled["metadata"]["namespace"]
    )


def test_brokers_are_as_many_as_their_autoscaler_says() -> None:
    spec = the("HorizontalPodAutoscaler", "cellblock-broker")["spec"]
    deployment = the("Deployment", spec["scaleTargetRef"]["name"])
    assert spec["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "cellblock-broker",
    }
    assert 2 <= spec["minReplicas"] < spec["maxReplicas"] and "replicas" not in deployment["spec"]
    assert deployment["spec"]["strategy"] == {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert "cpu" in broker_of(base())["resources"]["requests"], "its share is counted against that"
    assert not [one for one in base() if one["kind"] == "PersistentVolumeClaim"]


def test_a_broker_has_the_time_to_drain() -> None:
    before = broker_of(base())["lifecycle"]["preStop"]["sleep"]["seconds"]
    whole = before + HttpSettings().drain_ms / 1000 + DRAIN_MORE_SECONDS
    assert pod_of(base(), "cellblock-broker")["terminationGracePeriodSeconds"] >= whole


@pytest.mark.parametrize("single", [False, True])
def test_the_configuration_of_the_page_fits_the_pods(single: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in broker_of(base())["env"]:
        if not (single and variable["name"].startswith("CELLBLOCK_STATE")):
            monkeypatch.setenv(variable["name"], GIVEN[variable["name"]])
    (shown,) = (
        json.loads(one.text.replace("<public key of the hosts>", "ab" * 32))
        for one in examples()
        if one.page.name == "howto-kubernetes.md" and one.language == "json"
    )
    if single:
        del shown["cellblock"]["state"]
    section = parse_settings(shown).cellblock
    container = broker_of(base())
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert section.hosts.listen == f"tcp://0.0.0.0:{ports['hosts']}" and not section.hosts.local
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert section.hosts.key is not None and str(section.hosts.key.parent) in mounted
    names = [header["value"] for header in container["readinessProbe"]["httpGet"]["httpHeaders"]]
    assert {*names, f"{GIVEN['POD_IP']}:{ports['mcp']}"} <= {*section.http.allowed_hosts}
    (monitor,) = read("monitoring/servicemonitor.yaml")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert "relabelings" not in endpoint, "each broker is asked, at its own address"
    if single:
        assert not section.state.is_shared
    else:
        assert section.state.is_shared and section.state.broker is None, "a pod's name is its host's"
        assert the("Service", "cellblock")["spec"]["sessionAffinity"] == "ClientIP"
        service = the("Service", "cellblock")["metadata"]
        assert endpoint["tlsConfig"]["serverName"] == f"{service['name']}.{service['namespace']}.svc"


def rendered(part: str) -> list[Object]:
    """What Kustomize makes of a part."""
    command = ["kubectl", "kustomize", str(DEPLOY / part)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    objects = [one for one in YAML(typ="safe", pure=True).load_all(done.stdout) if one]
    assert breaches(objects) == []
    return objects


@NEEDS_KUSTOMIZE
def test_where_hosts_are_scaled_no_manifest_says_how_many_there_are() -> None:
    objects = rendered("keda")
    assert "replicas" not in the("Deployment", "cellblock-host", objects)["spec"]
    assert the("ScaledObject", "cellblock-host", objects)["spec"]["minReplicaCount"] == 2


@NEEDS_KUSTOMIZE
def test_one_broker_has_a_volume_and_no_database() -> None:
    objects = rendered("single")
    deployment = the("Deployment", "cellblock-broker", objects)["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert {one["name"] for one in broker_of(objects)["env"]} == {"SSL_CERT_FILE", "POD_IP"}
    claims = [volume["persistentVolumeClaim"] for volume in deployment["template"]["spec"]["volumes"]
              if "persistentVolumeClaim" in volume]  # fmt: skip
    claim = the("PersistentVolumeClaim", "cellblock-state", objects)
    assert claims == [{"claimName": claim["metadata"]["name"]}]
    assert not [one for one in objects if one["kind"] == "HorizontalPodAutoscaler"]
