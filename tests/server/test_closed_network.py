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
tritonctl up --set server.grpc_port=0 --set server.http_port=0 --set server.metrics_port=0
trap 'tritonctl down' EXIT
tritonctl generate speller "7342 in English:"
"""


@pytest.mark.server
@pytest.mark.exhaustive
@pytest.mark.skipif(os.getuid() != 0, reason="makes a network namespace")
def test_a_bundle_serves_where_no_network_is(tmp_path: Path) -> None:
    """From its folder alone, to streamed text."""
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    build_cached(load_project(project / "tritonctl.yaml"))
    bundle = tmp_path / "carried over"
    command = [sys.executable, "-m", "tritonctl", "bundle", str(bundle)]
    subprocess.run(command, cwd=project, check=True)
    shutil.rmtree(project)
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
    assert [folder.name for folder in (home / ".cache/tritonctl/environments").iterdir()] != []
