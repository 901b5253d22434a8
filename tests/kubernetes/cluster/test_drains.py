# SPDX-License-Identifier: Apache-2.0
"""The chart on a real cluster: text through its Envoy, and pods that leave without losing any."""

from __future__ import annotations

import hashlib
import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kubernetes.cluster.installation import NAME, Installation
from tests.kubernetes.cluster.running import wait_until
from tritonctl.protocol.client import TritonClient

pytestmark = pytest.mark.kubernetes

CLIENTS = 32
PROMPT, ANSWER = "7342 in English:", " seven thousand three hundred forty-two"
Tell = Callable[[str], None]


def release_of(project: Path, number: str) -> str:
    """What `values.yaml` names for a release of the project."""
    [folder] = (project / "releases").glob(f"{number}-*")
    digest = hashlib.sha256((folder / "release.json").read_bytes()).hexdigest()
    return f"{folder.name}@sha256:{digest}"


def test_text_streams_through_envoy(served: Installation) -> None:
    """Over gRPC and the OpenAI API, by one port of one Service."""
    assert served.helm("upgrade", dry_run="server")
    with served.gateway() as address, TritonClient(address) as client:
        pieces = [chunk.text for chunk in client.stream("speller", PROMPT)]
        assert "".join(pieces) == ANSWER
        assert len(pieces) > 1
        request = urllib.request.Request(
            f"http://{address}/v1/completions",
            json.dumps({"model": "speller", "prompt": PROMPT, "max_tokens": 24}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - ours
            assert json.load(answer)["choices"][0]["text"] == ANSWER


def test_a_new_release_under_streams(served: Installation, project: Path, tell: Tell) -> None:
    """`helm upgrade` with another release: every stream ends whole, on one of the two."""
    with served.streams(CLIENTS) as counted:
        began = time.monotonic()
        served.helm("upgrade", {"release": release_of(project, "2")})
        served.until_ready()
        seconds = time.monotonic() - began
    tell(f"helm upgrade: {seconds:.0f} s, {counted}, served by {sorted(counted.releases)}")
    assert (counted.lost, counted.refused) == ([], [])
    assert len(counted.releases) == 2


def test_an_eviction_under_streams(served: Installation, tell: Tell) -> None:
    """One of two servers goes; the budget refuses the second one until there are two again."""
    served.helm("upgrade", {"triton": {"replicas": 2}})
    served.until_ready()
    first, second = (pod["metadata"]["name"] for pod in served.pods("triton"))
    with served.streams(CLIENTS) as counted:
        began = time.monotonic()
        assert served.evict(first) == ""
        assert "disruption budget" in served.evict(second)
        names = {first}
        wait_until(lambda: not names & {p["metadata"]["name"] for p in served.pods()}, 120)
        gone = time.monotonic() - began
        served.until_ready()
        seconds = time.monotonic() - began
    tell(f"eviction: gone after {gone:.0f} s, replaced after {seconds:.0f} s, {counted}")
    assert (counted.lost, counted.refused) == ([], [])


def test_a_gateway_leaves_under_streams(served: Installation, tell: Tell) -> None:
    """Envoy's own pod is replaced: what goes through it ends whole first."""
    with served.streams(CLIENTS) as counted:
        began = time.monotonic()
        served.kubectl("rollout", "restart", f"deployment/{NAME}-gateway")
        served.until_ready()
        seconds = time.monotonic() - began
    tell(f"a gateway replaced: {seconds:.0f} s, {counted}")
    assert (counted.lost, counted.refused) == ([], [])
