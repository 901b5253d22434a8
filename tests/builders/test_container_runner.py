# SPDX-License-Identifier: Apache-2.0
"""The runner `container` against a real Docker Engine and a locally made image."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import container_engine
from tritonctl.engines.builds.engine import Artefact, build_engine
from tritonctl.errors import BuildFailedError, HostError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project

pytestmark = pytest.mark.docker

SCRIPTED = Path(__file__).parents[1] / "unit" / "scripted_builder"


@pytest.fixture
def project(python_image: str, tmp_path: Path) -> dict[str, Any]:
    """The data of a project whose scripted builder runs in the image."""
    shutil.copytree(SCRIPTED, tmp_path / "builders" / "scripted")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}", encoding="utf-8")
    engine = {
        "builder": "scripted",
        "precision": "int8",
        "max_seq_len": 64,
        "runner": "container",
        "target": {"image": container_engine.IMAGE},
    }
    return {
        "schema": "tritonctl/v1",
        "models": {"m": {"checkpoint": "checkpoint", "engine": engine}},
    }


def build(project: dict[str, Any], folder: Path) -> Artefact:
    (folder / "tritonctl.yaml").write_text(yaml.safe_dump(project), encoding="utf-8")
    return build_engine(load_project(folder), "m", Silent())


def containers() -> list[str]:
    """Those of builds."""
    listing = ["docker", "ps", "--all", "--quiet"]
    listing += ["--filter", "name=tritonctl-build-", "--filter", "name=tritonctl-probe-"]
    return subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()


def test_an_engine_is_built_in_the_image(project: dict[str, Any], tmp_path: Path) -> None:
    """The artefact is ours, the manifest names the image by its id, no container is left."""
    artefact = build(project, tmp_path)
    versions = artefact.manifest.result.versions
    assert versions["image"] == container_engine.IMAGE
    assert versions["image_id"].startswith("sha256:")
    assert versions["docker"]
    engine = artefact.folder / "engine" / "openvino_model.bin"
    assert engine.stat().st_uid == os.getuid()
    assert containers() == []


def test_the_same_build_by_hand(project: dict[str, Any], tmp_path: Path) -> None:
    """reproduce.sh runs in the image again and gives the same files."""
    artefact = build(project, tmp_path)
    again = tmp_path / "again"
    again.mkdir()
    subprocess.run([artefact.folder / "reproduce.sh"], cwd=again, check=True, capture_output=True)
    result = json.loads((again / "result.json").read_text(encoding="utf-8"))
    made = [file.model_dump() for file in artefact.manifest.result.files]
    assert result["files"] == made


def test_what_the_container_may_not(project: dict[str, Any], tmp_path: Path) -> None:
    """The checkpoint cannot be written, the network is not there."""
    script = tmp_path / "builders" / "scripted" / "build.py"
    probe = (
        "\nimport socket\n"
        "def refused(call, *arguments):\n"
        "    try:\n        call(*arguments)\n    except OSError:\n        return\n"
        "    raise SystemExit(7)\n"
        f"refused(open, {str(tmp_path / 'checkpoint' / 'new')!r}, 'w')\n"
        "refused(socket.create_connection, ('192.0.2.1', 80), 2)\n"
        "sys.stdout.write('refused both\\n')\n"
    )
    source = script.read_text(encoding="utf-8")
    assert "\nRecord = " in source
    script.write_text(source.replace("\nRecord = ", probe + "\nRecord = "), encoding="utf-8")
    artefact = build(project, tmp_path)
    assert "refused both" in (artefact.folder / "build.log").read_text(encoding="utf-8")


def test_a_crash_inside_is_a_failed_build(project: dict[str, Any], tmp_path: Path) -> None:
    """The tool's last lines come along."""
    project["models"]["m"]["engine"]["options"] = {"behaviour": "crash"}
    with pytest.raises(BuildFailedError, match="died while building m") as caught:
        build(project, tmp_path)
    assert "a bug of the builder" in str(caught.value.details)
    assert containers() == []


def test_an_image_that_is_not_here(project: dict[str, Any], tmp_path: Path) -> None:
    """Never pulled behind the user's back: the command to type is named."""
    project["models"]["m"]["engine"]["target"]["image"] = "tritonctl-test/none:1"
    with pytest.raises(HostError, match="tritonctl-test/none:1 is not on this machine") as caught:
        build(project, tmp_path)
    assert "`docker pull tritonctl-test/none:1`" in caught.value.remedy


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive), signal.SIGKILL],
)
def test_an_interrupted_build_leaves_no_container(
    project: dict[str, Any], tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C ends the container, too; after SIGKILL the next build is not held up."""
    gate = tmp_path / "checkpoint" / "gate"
    project["models"]["m"]["engine"]["options"] = {"gate": str(gate)}
    script = tmp_path / "builders" / "scripted" / "build.py"
    text = script.read_text(encoding="utf-8")  # the image has no /bin/sleep
    assert '["/bin/sleep", str(GATE_SECONDS)]' in text
    asleep = '[sys.executable, "-c", "import time; time.sleep(60)"]'
    script.write_text(text.replace('["/bin/sleep", str(GATE_SECONDS)]', asleep), encoding="utf-8")
    (tmp_path / "tritonctl.yaml").write_text(yaml.safe_dump(project), encoding="utf-8")
    command = [sys.executable, "-m", "tritonctl", "build", "--quiet"]
    _await(lambda: containers() == [])  # that of the test before would be taken for ours
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    _await(lambda: len(containers()) == 1)
    running.send_signal(number)
    running.communicate()
    if number == signal.SIGKILL:
        gate.touch()  # nobody could tell the container
        _await(lambda: containers() == [])
        gate.unlink()
    _await(lambda: containers() == [])  # Docker's own removal may still be under way
    assert not list((tmp_path / ".tritonctl").glob("engines/*/*"))
    gate.touch()
    assert build(project, tmp_path).is_new


def _await(condition: Any) -> None:
    deadline = time.monotonic() + container_engine.PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
