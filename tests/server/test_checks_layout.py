# SPDX-License-Identifier: Apache-2.0
"""What a server that loads all models makes of a repository: it serves, or it ends itself."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.check_models.models import MODEL, python_model
from tests.judge import ONE_ENDPOINT
from tests.unit.checks.repositories import put
from tritonctl.checks.examples.files import Example, ExampleFile
from tritonctl.checks.rules import RULES
from tritonctl.host.progress import Silent
from tritonctl.repository.backends import backend_named
from tritonctl.runtimes.embedded.installation import install_server

pytestmark = pytest.mark.server

PATIENCE = 60.0


def serves(folder: Path, files: Example, *arguments: str) -> bool:
    """Whether tritonserver, started as usual, goes on with this repository."""
    installation = install_server([backend_named("tokenizer")], Silent())
    log = folder / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [
                str(installation.binary),
                f"--model-repository={put(folder / 'models', files)}",
                f"--backend-directory={installation.backends}",
                *ONE_ENDPOINT,
                *arguments,
            ],
            env=installation.environment,
            stdout=file,
            stderr=file,
            process_group=0,
        )
    try:
        return _started(server, log)
    finally:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _started(server: subprocess.Popen[bytes], log: Path) -> bool:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if server.poll() is not None:
            return False
        if "Started GRPCInferenceService" in log.read_text(encoding="utf-8", errors="replace"):
            return True
        time.sleep(0.1)
    raise AssertionError(log.read_text(encoding="utf-8", errors="replace"))


@pytest.mark.parametrize("name", ["TC002", "TC005", "TC006", "TC007", "TC008"])
def test_one_stray_folder_ends_the_server(name: str, tmp_path: Path) -> None:
    """With it go all models that are sound."""
    other = {"other/config.pbtxt": 'backend: "python"\n', "other/1/model.py": MODEL}
    assert not serves(tmp_path, dict(RULES[name].bad_example) | other)


def test_a_link_to_nowhere_beside_the_models(tmp_path: Path) -> None:
    """In the repository's own folder it stops the server from looking at any."""
    assert not serves(tmp_path, python_model() | {"gone": ExampleFile(link="nowhere")})


@pytest.mark.parametrize("name", ["TC030", "TC032"])
def test_variants(name: str, tmp_path: Path) -> None:
    """Read only by a server that is told their name."""
    (tmp_path / "usual").mkdir()
    (tmp_path / "named").mkdir()
    assert serves(tmp_path / "usual", RULES[name].bad_example)
    assert not serves(tmp_path / "named", RULES[name].bad_example, "--model-config-name=h100")


def test_a_name_that_no_variant_has(tmp_path: Path) -> None:
    """It falls back to config.pbtxt, which is why TC031 is told."""
    assert serves(tmp_path, RULES["TC031"].bad_example, "--model-config-name=a100")
