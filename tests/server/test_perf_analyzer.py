# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own perf_analyzer drives the ensemble, unmodified."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, site_packages
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.engine_gauges import ACTIVE, WAITING
from tritonctl.protocol.metrics import scrape
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.server_environment import server_recipe
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "number-speller"

# The last releases of the wheel no longer carry the binary; this one is of the server's age.
PERF_ANALYZER = EnvironmentRecipe("perf-analyzer", (("--no-deps", "tritonclient==2.51.0"),))
# It links against libraries that the server's wheel bundles under other names.
# perf_analyzer 2.51 now and then exits without the end of its export, more often on a busy machine,
# and once, in some six hundred runs, it did not exit.
ATTEMPTS = 5
LONGEST = 40.0  # seconds of one; it takes two, and eight on a machine with ten times the work
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


@pytest.fixture
def libraries(speller_project: Project, tmp_path: Path) -> Path:
    """A folder in which perf_analyzer finds what it links against."""
    return link_libraries(speller_project, tmp_path / "libraries")


def link_libraries(project: Project, folder: Path) -> Path:
    """Fill a new folder with what perf_analyzer links against."""
    environment = ensure_environment(server_recipe(plan_repository(project).backends), Silent())
    bundled = site_packages(environment) / "nvidia_pytriton.libs"
    folder.mkdir()
    for name, pattern in LIBRARIES.items():
        (folder / name).symlink_to(next(bundled.glob(pattern)))
    return folder


def perf_analyzer(
    libraries: Path, url: str, arguments: Sequence[str | Path]
) -> subprocess.CompletedProcess[str]:
    """Run it against a server."""
    with started(libraries, url, arguments) as process:
        output, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@contextmanager
def started(
    libraries: Path, url: str, arguments: Sequence[str | Path]
) -> Iterator[subprocess.Popen[str]]:
    """Begin to run it against a server; whatever happens, it ends with the context."""
    binary = ensure_environment(PERF_ANALYZER, Silent()) / "bin" / "perf_analyzer"
    with subprocess.Popen(
        [binary, "-u", url, "-i", "grpc", "--streaming", *arguments],
        env=os.environ | {"LD_LIBRARY_PATH": str(libraries)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def profiled(libraries: Path, server: Server, profile: Path) -> list[dict[str, Any]]:
    """The requests that perf_analyzer says it sent and timed."""
    arguments: list[str | Path] = ["-m", "exact", "--input-data", EXAMPLE / "perf_analyzer.json"]
    arguments += ["--concurrency-range", "4", "--request-count", "60"]
    arguments += ["--profile-export-file", profile]
    for _ in range(ATTEMPTS):
        profile.unlink(missing_ok=True)  # perf_analyzer writes over nothing
        with started(libraries, server.grpc_url, arguments) as process:
            try:
                output, errors = process.communicate(timeout=LONGEST)
            except subprocess.TimeoutExpired:
                owed = unfinished(server)  # before its end, which cancels what it waits for
                assert owed == 0, f"the server owes it {owed:g} answers"
                continue
        assert process.returncode == 0, output + errors
        assert "Throughput" in output
        with suppress(json.JSONDecodeError):
            experiment = json.loads(profile.read_text())["experiments"][0]
            requests: list[dict[str, Any]] = experiment["requests"]
            return requests
    pytest.fail(f"perf_analyzer cut its export off, or hung, {ATTEMPTS} times")


def unfinished(server: Server) -> float:
    """Requests that Triton or an engine has taken and not ended."""
    metrics = scrape(server.metrics_url)
    series = [name for name, labels in (*ACTIVE, *WAITING) if not labels]
    return sum(metrics.total(name) for name in series)


def test_perf_analyzer_measures_every_streamed_response(
    speller_server: Server, libraries: Path, tmp_path: Path
) -> None:
    """With the shipped prompts, four streams at a time: many responses a request, all timed."""
    requests = profiled(libraries, speller_server, tmp_path / "profile.json")
    assert len(requests) > 20
    assert all(request["response_timestamps"] for request in requests)
    assert max(len(request["response_timestamps"]) for request in requests) > 1


def test_random_bytes_in_optional_tensors_are_refused_by_name(
    speller_server: Server, libraries: Path
) -> None:
    """Without input data perf_analyzer fills optional tensors with garbage: never served as is."""
    # perf_analyzer asks for their lengths
    lists = ("end_id:1", "stop_words:1", "bad_words:1", "resume_ids:1", "prompt_ids:1")
    others = ("embedding_bias_words:1", "embedding_bias_weights:1", "prompt_embedding_table:1,1")
    lora = ("lora_weights:1,1", "lora_config:1,3")
    shapes = [flag for shape in (*lists, *others, *lora) for flag in ("--shape", shape)]
    done = perf_analyzer(libraries, speller_server.grpc_url, ["-m", "int8", *shapes])
    assert done.returncode != 0
    assert "text_input and messages are both present" in done.stdout + done.stderr
    with TritonClient(speller_server.grpc_url) as client:
        assert client.generate("int8", "7 in English:").text == " seven"
