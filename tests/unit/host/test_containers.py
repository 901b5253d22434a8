# SPDX-License-Identifier: Apache-2.0
"""Removing a container whose engine refuses at first."""

from __future__ import annotations

from pathlib import Path
from threading import Timer

import pytest

from tritonctl.errors import HostError
from tritonctl.host import containers

# Refuses as many times as the file says, then the container is gone.
ENGINE = """\
#!/bin/sh
left=$(cat "{0}")
case "$1 $2" in
"rm --force")
  [ "$left" = 0 ] || echo "cannot remove: it is being started" >&2
  [ "$left" = 0 ] || echo $((left - 1)) > "{0}" ;;
"container inspect") [ "$left" != 0 ] ;;
esac
"""


@pytest.fixture
def refusals(tmp_path: Path) -> Path:
    """How often the engine still refuses."""
    program = tmp_path / "docker"
    program.write_text(ENGINE.format(tmp_path / "refusals"), encoding="utf-8")
    program.chmod(0o755)
    return tmp_path / "refusals"


def engine(refusals: Path) -> containers.ContainerEngine:
    """One that refuses."""
    return containers.ContainerEngine("docker", str(refusals.with_name("docker")), "1")


def test_a_container_that_is_just_started(refusals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again until the container is gone."""
    monkeypatch.setattr(containers, "_APPEAR_SECONDS", 0)
    refusals.write_text("3", encoding="utf-8")
    containers.remove_container(engine(refusals), "c")
    assert refusals.read_text(encoding="utf-8").strip() == "0"


def test_a_container_that_is_just_made(refusals: Path) -> None:
    """Not there yet, and removed once it is."""
    refusals.write_text("0", encoding="utf-8")
    appears = Timer(0.5, refusals.write_text, ["1", "utf-8"])
    appears.start()
    containers.remove_container(engine(refusals), "c")
    appears.join()
    assert refusals.read_text(encoding="utf-8").strip() == "0"


def test_a_container_that_stays(refusals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told with the engine's words and the command to type."""
    monkeypatch.setattr(containers, "_REMOVE_SECONDS", 0)
    refusals.write_text("1000", encoding="utf-8")
    with pytest.raises(HostError, match="docker does not remove the container c") as caught:
        containers.remove_container(engine(refusals), "c")
    assert caught.value.remedy == "remove it: `docker rm --force c`"
    assert caught.value.details == "cannot remove: it is being started"
