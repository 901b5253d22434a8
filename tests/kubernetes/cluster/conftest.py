# SPDX-License-Identifier: Apache-2.0
"""A real cluster, the project's real images in it, and the speller's chart installed there."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.conftest import speller_model
from tests.container_engine import DockerHost, MissingError
from tests.docker import machine
from tests.docker.deployments import compose, rendered, succeeded
from tests.engine_cache import build_cached
from tests.kubernetes.cluster import making
from tests.kubernetes.cluster.installation import PAIRS, Installation
from tests.kubernetes.cluster.machines import SECOND, wait_until
from tests.kubernetes.cluster.running import Cluster
from tritonctl.host.files import try_exclusive
from tritonctl.project.file import load_project
from tritonctl.security.certificates import make_certificates

NAMESPACE = "tritonctl-test"
SERVICES = ("triton", "envoy", "frontend")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The one that `python -m tests.kubernetes.cluster up` has left, else one of this run's own.

    It starts while the project is built.
    """
    kept = Cluster(making.folder() / "kept")
    if kept.is_up():
        yield kept
        return
    with try_exclusive(making.folder() / "lock") as free:
        if not free:
            pytest.skip("NO CLUSTER: another run has it")
        try:
            making.make()
        except MissingError as missing:
            pytest.skip(f"NO CLUSTER: Kubernetes is not tested here: {missing}")
        ours = Cluster(making.folder() / "run")
        try:
            ours.start()
            yield ours
        finally:
            ours.stop()


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The speller with gateway and frontend, two tenants, and two releases of it."""
    folder = tmp_path_factory.mktemp("cluster") / "speller"
    make_certificates(folder / "certs")
    (folder / "keys").mkdir()
    for name in ("alice", "bob", "token"):
        (folder / "keys" / name).write_text(secrets.token_hex(16), encoding="ascii")
    model = speller_model()
    data = {
        "schema": "tritonctl/v1",
        "models": {"speller": model},
        "server": {"grpc_port": 0, "http_port": 0, "metrics_port": 0, "exit_timeout_seconds": 60},
        "gateway": {
            "tls": {"certificate": "certs/server.crt", "key": "certs/server.key"},
            "tenants": {name: {"api_key_file": f"keys/{name}"} for name in ("alice", "bob")},
        },
        "frontend": {},
        "docker": {"base_image": machine.BASE_IMAGE},
    }
    file = folder / "tritonctl.yaml"
    # Of another content is another release; what the first one's trial says is in the chart.
    for delay, trial in ((100, "--smoke"), (200, "--no-smoke")):
        batching = {"max_queue_delay_microseconds": delay}
        model["serving"] = {"config": {"tokenizer": {"dynamic_batching": batching}}}
        file.write_text(yaml.safe_dump(data), encoding="utf-8")
        build_cached(load_project(folder))
        succeeded(folder, "releases", "publish", trial)
    return folder


@pytest.fixture(scope="session")
def installation(cluster: Cluster, project: Path) -> Iterator[Installation]:
    """Of the first release, for `have`; all of it goes to the first node."""
    cluster.until_ready()
    succeeded(project, "deploy", "kubernetes", "--release", "1")
    chart = project / "deploy" / "chart"
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    _have_images(cluster, project, [values["images"][n] for n in ("triton", "gateway", "frontend")])
    made = Installation(cluster, NAMESPACE, project, chart)
    made.remove()
    _bring_releases(cluster, project / "releases")
    cluster.kubectl("create", "namespace", NAMESPACE)
    made.bring_secret()
    given = {"default-token", "kube-root-ca.crt"}  # by Kubernetes, a little later
    wait_until(lambda: all(each in str(made.everything()) for each in given), 30)
    made.before = made.everything()
    cluster.kubectl("cordon", SECOND)
    yield made
    made.remove(wait=False)  # the next run on this cluster does
    cluster.kubectl("uncordon", SECOND)


@pytest.fixture
def served(installation: Installation, request: pytest.FixtureRequest) -> Installation:
    """For one test: one pod of each part, ready."""
    installation.have()
    return installation


@pytest.fixture
def pairs(installation: Installation, request: pytest.FixtureRequest) -> Installation:
    """For one test: two pods of each part, ready."""
    installation.have(PAIRS)
    return installation


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Figures for whoever watches the tests."""

    def write(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")

    return write


def _have_images(cluster: Cluster, project: Path, names: list[str]) -> None:
    """Built by Docker as `docker compose build` does for a user, and brought as a file."""
    if {f"docker.io/{name}" for name in names} <= cluster.images():
        return
    archive = project / "images.tar"
    with pytest.MonkeyPatch.context() as environment, closing(DockerHost()) as host:
        for name, value in (host.variables | machine.plugins()).items():
            environment.setenv(name, value)
        machine.import_base_image()
        folder = rendered(project, dict.fromkeys(SERVICES, machine.BUILD))
        compose(folder, "--profile", "*", "build", *SERVICES)
        command = [machine.program("docker"), "save", "--output", str(archive), *names]
        subprocess.run(command, check=True, capture_output=True)
    cluster.import_images(archive)
    archive.unlink()


def _bring_releases(cluster: Cluster, releases: Path) -> None:
    """Into the folder of the machines that stands for a volume, which the claim gets."""
    folder = cluster.state / "volumes" / NAMESPACE
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(releases, folder, symlinks=True)
    for parent, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(Path(parent, name), 1000, 1000, follow_symlinks=False)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": NAMESPACE},
        "spec": {
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": f"/k/volumes/{NAMESPACE}"},
            "claimRef": {"namespace": NAMESPACE, "name": "demo-releases"},
        },
    }
    cluster.kubectl("apply", "--filename=-", given=json.dumps(volume))
