# SPDX-License-Identifier: Apache-2.0
"""The user's kubectl: how it is called, what its answers and its failures become."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.fakes.kubectl import FakeKubectl
from tests.loopback_http import Answering, listening
from tests.unit.conftest import WaitUntil
from tritonctl.errors import ConfigurationError, HostError, UsageError
from tritonctl.runtimes.kubernetes.api_errors import (
    ClusterError,
    ClusterErrorReason,
    ManifestRefusedError,
    kubectl_error,
)
from tritonctl.runtimes.kubernetes.forwarding import port_forward
from tritonctl.runtimes.kubernetes.kubectl import Kubectl

POD = {"kind": "Pod", "metadata": {"name": "demo-triton-1"}}


def test_what_it_is_asked(cluster: FakeKubectl) -> None:
    """Context, namespace and a time limit come with every request, each as one argument."""
    cluster.lists("get pods", [POD])
    found = Kubectl("there", "mine").get("pods", selector={"app": "demo"})
    assert found == [POD]
    (asked,) = cluster.asked
    assert asked == [
        "--request-timeout=20s",
        "--context=there",
        "--namespace=mine",
        "get",
        "pods",
        "--selector=app=demo",
        "--output=json",
    ]


def test_its_own_context_and_namespace(cluster: FakeKubectl) -> None:
    """Without names the user's configuration decides; without one there, `default`."""
    view = {"contexts": [{"name": "a", "context": {"cluster": "a", "namespace": "team"}}]}
    cluster.says("config view --minify", view)
    assert Kubectl().effective_namespace == "team"
    cluster.says("config view --minify", {"contexts": None})
    assert Kubectl().effective_namespace == "default"
    assert Kubectl(namespace="mine").effective_namespace == "mine"
    assert all(not word.startswith("--context") for asked in cluster.asked for word in asked)


def test_objects_go_in_by_standard_input(cluster: FakeKubectl) -> None:
    """A manifest may hold a Secret: it is on no command line."""
    cluster.says("apply --filename=-", {"kind": "List", "items": [POD, POD]})
    assert Kubectl().apply([POD, POD], dry_run=True) == [POD, POD]
    *words, stdin = cluster.asked[-1]
    assert json.loads(stdin)["items"] == [POD, POD]
    assert "--dry-run=server" in words
    cluster.says("apply --filename=-", POD)
    assert Kubectl().apply([POD]) == [POD]


def test_other_requests(cluster: FakeKubectl) -> None:
    """Patches, commands in a pod, deletions."""
    cluster.says("patch deployment demo", {"kind": "Deployment"})
    cluster.says("exec demo-1", "hello\n")
    cluster.says("delete configmap demo", "deleted")
    kubectl = Kubectl()
    assert kubectl.patch("deployment", "demo", {"spec": {"replicas": 2}})["kind"] == "Deployment"
    assert kubectl.execute("demo-1", "echo", "hello", container="triton") == "hello\n"
    kubectl.delete("configmap", "demo")
    patch, execute, delete = cluster.asked
    assert '--patch={"spec": {"replicas": 2}}' in patch
    assert execute[-4:] == ["--container=triton", "--", "echo", "hello"]
    assert "--ignore-not-found" in delete


def test_one_that_is_not_there(cluster: FakeKubectl) -> None:
    """None for an object or a kind that the cluster lacks; anything else is a failure."""
    kubectl = Kubectl()
    assert kubectl.find("pod", "demo") is None
    kind = 'error: the server doesn\'t have a resource type "scaledobjects"'
    cluster.says("get scaledobjects", err=kind, status=1)
    assert kubectl.find("scaledobjects", "demo") is None
    cluster.says("get secret", err="Error from server (Forbidden): no", status=1)
    with pytest.raises(ClusterError) as caught:
        kubectl.find("secret", "demo")
    assert caught.value.reason is ClusterErrorReason.FORBIDDEN


def test_rights(cluster: FakeKubectl) -> None:
    """`no` is no failure, unlike a cluster that does not answer."""
    cluster.says("auth can-i create deployments.apps", status=0)
    cluster.says("auth can-i create secrets", err="Warning: resource is odd", status=1)
    refused = "Unable to connect to the server: dial tcp: lookup x: no such host"
    cluster.says("auth can-i create pods", err=refused, status=1)
    kubectl = Kubectl()
    assert kubectl.is_allowed("create", "deployments.apps")
    assert not kubectl.is_allowed("create", "secrets")
    with pytest.raises(ClusterError, match="unreachable"):
        kubectl.is_allowed("create", "pods")


def test_a_namespace_that_is_missing(cluster: FakeKubectl) -> None:
    """kubectl lists nothing in it, and says no word."""
    cluster.lists("get pods", [])
    kubectl = Kubectl(namespace="mien")
    assert kubectl.get("pods") == []
    with pytest.raises(ClusterError, match="no namespace `mien`") as caught:
        kubectl.require_namespace()
    assert "--namespace" in caught.value.remedy
    cluster.says("get namespace", err="Error from server (Forbidden): no", status=1)
    kubectl.require_namespace()


@pytest.mark.parametrize("value", ["--all", "Mine", "", "a b", "a/b", "-a", "a" * 300])
def test_names_are_no_options(cluster: FakeKubectl, value: str) -> None:
    """Whatever is given as a name is one, or refused before kubectl is asked."""
    with pytest.raises(UsageError, match="not a valid Kubernetes name"):
        Kubectl().find("pod", value)
    with pytest.raises(UsageError, match="--namespace"):
        Kubectl(namespace=value)
    assert cluster.asked == []


def test_without_kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What to install, and exit code 4."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="not installed") as caught:
        Kubectl().get("pods")
    assert caught.value.exit_code == 4


def test_no_json(cluster: FakeKubectl) -> None:
    """Another program of that name."""
    cluster.says("get pods", "<html>")
    with pytest.raises(ClusterError, match="did not print JSON"):
        Kubectl().get("pods")


def test_one_that_hangs(cluster: FakeKubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own time limit does not bound a plugin for credentials that waits for a password."""
    monkeypatch.setattr("tritonctl.runtimes.kubernetes.kubectl._MARGIN_SECONDS", 0.0)
    (cluster.folder / "kubectl").write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    with pytest.raises(ClusterError, match="did not finish within") as caught:
        Kubectl(seconds=0.1).get("pods")
    assert caught.value.reason is ClusterErrorReason.TIMEOUT


Reason = ClusterErrorReason
# As kubectl 1.20 to 1.32 print them, some after lines of its own log.
SAID = {
    "error: current-context is not set": Reason.NO_CONTEXT,
    "Error in configuration: context was not found for specified context: foo": (Reason.NO_CONTEXT),
    'error: context "foo" does not exist': Reason.NO_CONTEXT,
    "The connection to the server localhost:8080 was refused - did you specify the right host or "
    "port?": Reason.UNREACHABLE,
    "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or "
    "port?": Reason.UNREACHABLE,
    "Unable to connect to the server: dial tcp: lookup nowhere on 10.0.0.2:53: no such "
    "host": Reason.UNREACHABLE,
    "Unable to connect to the server: x509: certificate signed by unknown "
    "authority": Reason.UNREACHABLE,
    "Unable to connect to the server: dial tcp 10.9.9.9:6443: i/o timeout": Reason.TIMEOUT,
    "Unable to connect to the server: net/http: request canceled (Client.Timeout exceeded while "
    "awaiting headers)": Reason.TIMEOUT,
    "error: timed out waiting for the condition": Reason.TIMEOUT,
    "error: You must be logged in to the server (Unauthorized)": Reason.UNAUTHORIZED,
    "Unable to connect to the server: getting credentials: exec: executable aws failed with exit "
    "code 255": Reason.UNAUTHORIZED,
    'Error from server (Forbidden): pods is forbidden: User "eve" cannot list resource "pods" in '
    'API group "" in the namespace "team"': Reason.FORBIDDEN,
    'Error from server (Forbidden): error when creating "STDIN": pods "x" is forbidden: exceeded '
    "quota: small, requested: memory=2Gi, used: memory=0, limited: memory=1Gi": (Reason.QUOTA),
    'Error from server (Forbidden): pods "x" is forbidden: violates PodSecurity "restricted": '
    "hostPath volumes": Reason.POLICY,
    'Error from server (NotFound): namespaces "mien" not found': Reason.NO_NAMESPACE,
    'error: the server doesn\'t have a resource type "scaledobjects"': Reason.NO_KIND,
    'error: unable to recognize "STDIN": no matches for kind "PodMonitor" in version '
    '"monitoring.coreos.com/v1"': Reason.NO_KIND,
    'Error from server (NotFound): deployments.apps "demo" not found': Reason.NOT_FOUND,
    'Error from server (Conflict): Operation cannot be fulfilled on deployments.apps "demo": the '
    "object has been modified": Reason.CONFLICT,
    'The Deployment "demo" is invalid: spec.replicas: Invalid value: -1': Reason.INVALID,
    "something else": Reason.OTHER,
    "": Reason.OTHER,
}


@pytest.mark.parametrize("text", SAID)
def test_why_it_failed(text: str) -> None:
    """Each failure by its kind, with what kubectl said, and a command to type next."""
    log = 'E1126 08:20:21.007583   20349 memcache.go:265] "Unhandled Error" err="refused"'
    for printed in (text, f"{log}\n{text}" if text else ""):
        error = kubectl_error(printed, flags=" --namespace team")
        assert isinstance(error, ClusterError | ManifestRefusedError)
        assert error.reason is SAID[text]
        expected = ConfigurationError if error.reason in ("conflict", "invalid") else HostError
        assert isinstance(error, expected)
        assert "{" not in error.problem + error.remedy
        assert "memcache" not in error.problem


class _Hello(Answering):
    def answer(self) -> None:
        self.send(200, b"hello")


def _page(address: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}") as answer:
        content: bytes = answer.read()
    return content


def test_a_forwarded_port(cluster: FakeKubectl) -> None:
    """kubectl chooses the local port; it ends with the context."""
    with listening(_Hello) as url:
        cluster.forwards("pod/demo-1", int(url.rpartition(":")[2]))
        with port_forward(Kubectl(), "pod/demo-1", 8000) as forward:
            assert forward.alive
            assert _page(forward.address) == b"hello"
            forward.require_alive()
        assert not forward.alive
    assert "port-forward" in cluster.asked[0]
    assert ":8000" in cluster.asked[0]
    assert not any(word.startswith("--request-timeout") for word in cluster.asked[0])


def test_a_pod_that_ends(cluster: FakeKubectl, wait_until: WaitUntil) -> None:
    """The connection ends with it, and says so."""
    with listening(_Hello) as url:
        gone = int(url.rpartition(":")[2])
    cluster.forwards("pod/demo-1", gone)
    with port_forward(Kubectl(), "pod/demo-1", 8000) as forward:
        with pytest.raises(OSError, match=r"."):
            _page(forward.address)
        wait_until(lambda: not forward.alive)
        with pytest.raises(ClusterError, match=r"pod/demo-1 was closed: .*lost connection"):
            forward.require_alive()


def test_a_pod_that_is_not_there(cluster: FakeKubectl) -> None:
    """By its kind, as of any request."""
    missing = 'Error from server (NotFound): pods "demo-1" not found'
    cluster.says("port-forward", err=missing, status=1)
    with (
        pytest.raises(ClusterError) as caught,
        port_forward(Kubectl(), "pod/demo-1", 8000),
    ):
        pass
    assert caught.value.reason is ClusterErrorReason.NOT_FOUND


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_it_ends_with_us(cluster: FakeKubectl, wait_until: WaitUntil) -> None:
    """Also where we are killed."""
    cluster.forwards("pod/demo-1", 9)
    program = (
        "import time\n"
        "from tritonctl.runtimes.kubernetes.forwarding import port_forward\n"
        "from tritonctl.runtimes.kubernetes.kubectl import Kubectl\n"
        "with port_forward(Kubectl(), 'pod/demo-1', 8000) as forward:\n"
        "    print(forward._process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as ours:
        assert ours.stdout is not None
        pid = int(ours.stdout.readline())
        ours.send_signal(signal.SIGKILL)
        ours.wait()
    wait_until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1][:3]


def test_lines_as_they_come(cluster: FakeKubectl) -> None:
    """Logs, until they end; a failure at their end is one."""
    cluster.says("logs demo-1", "one\ntwo\n")
    assert list(Kubectl().lines("logs", "demo-1")) == ["one", "two"]
    cluster.says("logs demo-1", "one\n", err="Error from server (Forbidden): no", status=1)
    with pytest.raises(ClusterError) as caught:
        list(Kubectl().lines("logs", "demo-1"))
    assert caught.value.reason is ClusterErrorReason.FORBIDDEN
