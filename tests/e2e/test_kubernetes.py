"""What the manifests start, started here: two brokers at addresses of their own, a host, and what a cluster asks."""

import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
from asyncio.subprocess import Process
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cellblock_worker.wire.keys import make_key_file
from support.certificates import certificate
from support.commands import piped
from support.documents import ROOT, examples
from support.entries import CELLBLOCK
from support.http_daemon import TOOL, Daemon, opened, said
from support.http_server import free_port
from support.modern_client import message
from support.postgresql import Postgres
from support.waits import until_found, within

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the loopback has one address only"),
]

ADDRESSES = ("127.0.0.2", "127.0.0.3")
NAME = "cellblock.cellblock.svc"
TOKEN = "t" * 32
OTHER = "o" * 32


def pod_of(file: str) -> dict[str, Any]:
    """The pod of a manifest's Deployment."""
    documents = YAML(typ="safe", pure=True).load_all((ROOT / "deploy/kubernetes/base" / file).read_text())
    (found,) = [one["spec"]["template"]["spec"] for one in documents if one["kind"] == "Deployment"]
    return found


@dataclass
class Place:
    """Where the paths and ports of the pods are on this machine."""

    folder: Path
    ports: dict[str, int]

    @property
    def temporary(self) -> dict[str, str]:
        """Where a pod's files may be that are nobody's."""
        return dict.fromkeys(("HOME", "TMPDIR"), str(self.folder / "tmp"))

    def here(self, text: str) -> str:
        """A text of a manifest, or of the page, with what is here in the place of what is there."""
        for path in ("/secret", "/etc/cellblock", "/run/cellblock", "/state"):
            text = re.sub(rf"(?<![\w.]){path}\b", f"{self.folder}{path}", text)
        for there, port in self.ports.items():
            text = re.sub(rf"(?<=:){there}\b", str(port), text)
        return text


def make_volume(path: Path) -> None:
    """An empty volume as kubelet makes it with a `fsGroup`: root's, and open to all."""
    path.mkdir(parents=True)
    if os.geteuid() == 0:
        # Here pods are root's, and so a volume is somebody else's.
        os.chown(path, 65532, 65532)
    path.chmod(0o2777)


def prepared(folder: Path) -> Place:
    """The volumes, as the Secrets and the page say, and what the init container makes of them."""
    place = Place(folder, {"7433": free_port(""), "7070": free_port("")})
    for path in ("secret/key", "secret/token", "secret/tls", "etc/cellblock/config"):
        (folder / path).mkdir(parents=True)
    for pod in ("broker.yaml", "hosts.yaml"):
        empty = {one["name"] for one in pod_of(pod)["volumes"] if "emptyDir" in one}
        for container in pod_of(pod)["containers"]:
            for mount in container["volumeMounts"]:
                path = folder / mount["mountPath"].strip("/")
                if mount["name"] in empty and not path.exists():
                    make_volume(path)
    cert, key = certificate(folder, host=NAME)
    tls = folder / "etc/cellblock/tls"
    tls.mkdir()
    for where in (tls, folder / "secret/tls"):
        for name, file in (("tls.crt", cert), ("tls.key", key), ("ca.crt", cert)):
            (where / name).write_bytes(file.read_bytes())
    make_key_file(folder / "secret/key/broker.key")
    for name, token in (("token", TOKEN), ("other", OTHER)):
        (folder / "secret/token" / name).write_text(token)
    host = make_key_file(folder / "host.key")
    text = next(
        one.text for one in examples() if one.page.name == "howto-kubernetes.md" and one.language == "json"
    )
    text = place.here(text).replace("<public key of the hosts>", host.public)
    # Two pods of one machine, which have a network each on a cluster.
    text = text.replace("tcp://0.0.0.0", "tcp://${env:POD_IP}")
    section = json.loads(text)["cellblock"]
    quick = {"typecheck": "off", "auth": {"keyring": "off"}, "pool": {"warm": 0}}
    state = {**section["state"], "broker": "${env:POD}"}
    config = {"mcpServers": {}, "cellblock": {**section, **quick, "state": state}}
    (folder / "etc/cellblock/config/cellblock.json").write_text(json.dumps(config))
    (init,) = pod_of("broker.yaml")["initContainers"]
    command = [place.here(word) for word in init["command"]]
    public = Path("/etc/ssl/certs/ca-certificates.crt")
    if not public.exists():
        command = [word.replace(str(public), str(cert)) for word in command]
    subprocess.run(command, check=True, timeout=60)
    return place


@pytest.fixture(scope="module")
async def brokers(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres
) -> AsyncIterator[tuple[Place, list[Daemon]]]:
    """Two pods of the Deployment."""
    place = prepared(tmp_path_factory.mktemp("k"))
    (container,) = pod_of("broker.yaml")["containers"]
    secret = {"url": postgres.database(), "key": b64encode(bytes(range(32))).decode()}
    trusted = ssl.create_default_context(cafile=str(place.folder / "secret/tls/ca.crt"))
    trusted.check_hostname = False
    found: list[Daemon] = []
    async with AsyncExitStack() as stack:
        for address in ADDRESSES:
            # Pods have host names of their own.
            environment = {"PATH": os.environ["PATH"], "POD": address.replace(".", "-"), **place.temporary}
            for one in container["env"]:
                kinds = one.get("valueFrom", {})
                environment[one["name"]] = (
                    address
                    if kinds.get("fieldRef") == {"fieldPath": "status.podIP"}
                    else secret[kinds["secretKeyRef"]["key"]]
                    if kinds
                    else place.here(one["value"])
                )
            # As pods, they share no folder.
            state = f"{place.folder}/state"
            make_volume(Path(f"{state}-{address}"))
            arguments = [place.here(word).replace("0.0.0.0", address) for word in container["args"]]
            arguments = [word.replace(state, f"{state}-{address}") for word in arguments]
            started = piped(*arguments, program=CELLBLOCK, stdout=None, env=environment, cwd=place.folder)
            process = (await stack.enter_async_context(started)).process
            while b"serving" not in (line := await within(process.stderr.readline())):
                assert line, "it did not start"
            found.append(Daemon(process, place.ports["7433"], place.folder, TOKEN, trusted, host=address))
        yield place, found
        for one in found:
            one.process.terminate()
            await within(one.process.wait())


async def started_host(place: Place) -> Process:
    """A pod of the hosts, which dials both brokers."""
    (container,) = pod_of("hosts.yaml")["containers"]
    public = (place.folder / "run/cellblock/broker.key").read_text().split("\n# ")[1].split()[0]
    key = place.folder / "run/cellblock/host.key"
    key.write_bytes((place.folder / "host.key").read_bytes())
    key.chmod(0o600)
    words = [place.here(word).replace("$(BROKER_PUBLIC_KEY)", public) for word in container["args"]]
    # No cluster's DNS; and not every machine that runs tests lets bubblewrap work.
    words = [word for word in words if "--connect" not in word and "--isolation" not in word]
    names = [f"tcp://{address}:{place.ports['7070']}" for address in ADDRESSES]
    command = [sys.executable, *container["command"][1:], "--connect", *names, *words]
    return await asyncio.create_subprocess_exec(*command, env={**os.environ, **place.temporary})


def asked_by(probe: str) -> tuple[str, dict[str, str]]:
    """The path that kubelet asks for, and its headers."""
    (container,) = pod_of("broker.yaml")["containers"]
    asked = container[probe]["httpGet"]
    return asked["path"], {header["name"]: header["value"] for header in asked["httpHeaders"]}


async def test_two_brokers_become_ready_with_a_host_and_share_it(
    brokers: tuple[Place, list[Daemon]],
) -> None:
    place, both = brokers
    for broker in both:
        for probe, status in (("startupProbe", 200), ("livenessProbe", 200), ("readinessProbe", 503)):
            path, headers = asked_by(probe)
            assert (await broker.ask("GET", path, headers=headers)).status == status, probe
    host = await started_host(place)
    try:
        path, headers = asked_by("readinessProbe")

        async def are_ready() -> bool:
            answers = [await broker.ask("GET", path, headers=headers) for broker in both]
            return all(answer.status == 200 for answer in answers)

        await until_found(are_ready, "both brokers have the host")
        code = {"code": "globalThis.__codemode_result__ = 6 * 7;"}
        body = message("tools/call", 3, name=TOOL, arguments=code)
        for broker in both:
            session = {**await opened(broker), "Host": "cellblock"}
            _, told = await said(broker, broker.request("POST", "/mcp", headers=session, body=body))
            assert told["result"]["structuredContent"]["result"] == 42, told
    finally:
        host.terminate()
        await within(host.wait())


async def test_prometheus_is_answered_at_a_pods_address(brokers: tuple[Place, list[Daemon]]) -> None:
    place, (one, other) = brokers
    for broker in (one, other):
        itself = {"Host": f"{broker.host}:{place.ports['7433']}"}
        assert (await broker.ask("GET", "/metrics", headers=itself)).status == 401
        metrics = await broker.ask("GET", "/metrics", headers={**itself, **broker.auth})
        assert metrics.status == 200 and b"cellblock_pool_queued" in metrics.body
        beside = {**itself, "Authorization": f"Bearer {OTHER}"}
        assert (await broker.ask("GET", "/metrics", headers=beside)).status == 200, "tokens are changing"
    mistaken = {"Host": f"{other.host}:{place.ports['7433']}", **one.auth}
    assert (await one.ask("GET", "/metrics", headers=mistaken)).status == 403
