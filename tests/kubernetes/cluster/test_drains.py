# SPDX-License-Identifier: Apache-2.0
"""The chart on a real cluster: text through its Envoy, and pods that leave without losing any."""

from __future__ import annotations

import hashlib
import json
import ssl
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kubernetes.cluster.installation import PAIRS, Installation
from tests.kubernetes.cluster.machines import FIRST, SECOND

pytestmark = pytest.mark.kubernetes

CLIENTS = 32
PROMPT, ANSWER = "7342 in English:", " seven thousand three hundred forty-two"
Tell = Callable[[str], None]


def release_of(project: Path, number: str) -> str:
    """What `values.yaml` names for a release of the project."""
    [folder] = (project / "releases").glob(f"{number}-*")
    digest = hashlib.sha256((folder / "release.json").read_bytes()).hexdigest()
    return f"{folder.name}@sha256:{digest}"


def test_text_streams_through_envoy(served: Installation, project: Path) -> None:
    """Over gRPC and the OpenAI API, by one port of one Service, with TLS and a tenant's key."""
    assert served.helm("upgrade", dry_run="server")
    with served.gateway() as address, served.client(address) as client:
        pieces = [chunk.text for chunk in client.stream("speller", PROMPT)]
        assert "".join(pieces) == ANSWER
        assert len(pieces) > 1
        key = (project / "keys" / "alice").read_text(encoding="ascii")
        request = urllib.request.Request(
            f"https://{address}/v1/completions",
            json.dumps({"model": "speller", "prompt": PROMPT, "max_tokens": 24}).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {key}"},
        )
        tls = ssl.create_default_context(cafile=served.authority)
        with urllib.request.urlopen(request, timeout=30, context=tls) as answer:  # noqa: S310
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
    assert counted.releases == {"1", "2"}


def test_a_node_is_drained_under_streams(installation: Installation, tell: Tell) -> None:
    """Two of each part lie on it; they go to the other one, one of each part at a time."""
    installation.drain(SECOND)  # and cordoned
    installation.have(PAIRS)
    installation.cluster.kubectl("uncordon", SECOND)
    try:
        with installation.streams(CLIENTS) as counted:
            began = time.monotonic()
            told = installation.drain(FIRST)
            gone = time.monotonic() - began
            installation.until_ready()
            seconds = time.monotonic() - began
    finally:
        installation.cluster.kubectl("uncordon", FIRST)
    tell(f"drain of a node: empty after {gone:.0f} s, all ready after {seconds:.0f} s, {counted}")
    assert "disruption budget" in told  # the second one of a part had to wait
    assert {pod["spec"]["nodeName"] for pod in installation.pods()} == {SECOND}
    assert (counted.lost, counted.refused) == ([], [])
