# SPDX-License-Identifier: Apache-2.0
"""The servers that tests share: each is started once a session, by the test that takes it first.

`*_handle` and `pair_handles` live as long as the session; the fixture without that word gives one
test a server that has just answered. All tests of a configuration run in one process (`GROUPS`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests import sample_tokenizers
from tests.engine_cache import build_cached
from tests.handwritten import TWICE, write_model
from tests.otlp_receiver import Receiver, otlp_receiver
from tests.server.replay import ReplayModel, replay_models
from tests.server.scripted import Kind
from tests.server.trtllm import trtllm_project
from tests.servers import USED, Handle, paced_project
from tests.task_models import task_project
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.runtimes.server_state import Server
from tritonctl.security.certificates import make_certificates, tls_section

# The fixture that a test takes, directly or not, and the group it runs in; the first one counts.
# The groups that take longest come first.
GROUPS = {
    "pair_handles": "pair",
    "life_handle": "life",
    "inline_handle": "inline",
    "replay_handle": "replay",
    "tls_handle": "tls",
    "trtllm_handle": "trtllm",
    "trtllm_pytorch_handle": "trtllm_pytorch",
    "graphs_handle": "graphs",
    "tasks_handle": "tasks",
    "traced_handle": "traced",
    "speller_handle": "speller",
    "installation": "cluster",  # in the order of its files
}
CONTAINERS = "containers"
# The files that come next, each for a process of its own: what takes longest comes first, and what
# measures times before what builds.
SLOW_FILES = (
    "tests/server/test_tune.py",
    "tests/server/test_loadtest.py",
    "tests/server/test_reload.py",
    "tests/server/test_smoke.py",
    "tests/strangers/test_configurations.py",
    "tests/test_pages_followed.py",
    "tests/test_docs.py",
    "tests/server/test_checks.py",
    "tests/builders/test_onnxruntime_build.py",
    "tests/builders/test_openvino_build.py",
    "tests/server/test_onnxruntime.py",
    "tests/builders/test_tensorrt_llm_quantised.py",
    "tests/server/test_openvino_tasks.py",
    "tests/builders/test_onnxruntime_tasks.py",
    "tests/builders/test_openvino_gemma.py",
    "tests/builders/test_init.py",
    "tests/server/test_images.py",
    "tests/unit/host/test_installing.py",
    "tests/unit/bundle/test_bundle.py",
    "tests/unit/engines/test_fetch.py",
    "tests/test_packaging.py",
    "tests/unit/cli/test_cli.py",
    "tests/unit/structure/test_benchmarks.py",
    "tests/unit/repository/test_repository.py",
    "tests/unit/engines/test_init.py",
    "tests/unit/releases/test_releases.py",
    "tests/unit/runtimes/docker/test_rendering.py",
    "tests/unit/engines/test_pruning.py",
    "tests/monitoring/test_dashboard.py",
)
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "number-speller"
# Of the replay server's slow models: one place in the engine, so whoever is second waits.
PLACES, QUEUE = 1, 8
SLOWLY = {"ids": [70, 71, 72], "repeat": True, "step_ms": 20}
TRACE_RATE = 4
# The only model name that NVIDIA's scripts accept, and what it says to any seed up to 7.
FOREIGN = "ensemble"
BY_HAND = "by_hand"
FUSED = "fused"
FOREIGN_UNARY = f"{FOREIGN}_unary"
FOREIGN_ANSWER = " seven thousand three hundred forty-two, 七千三百四十二, 7️⃣"
LOAD = {
    "model": "int8",
    "requests": [{"prompts": str(EXAMPLE / "prompts.jsonl"), "max_tokens": 8}],
    "arrivals": {"process": "constant", "rate": 20},
    "count": 20,
}
# Far beyond every patience: who ends by then was not waited for in vain.
EXIT_SECONDS = 1200


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a module shares, a server that crashed among it, is made anew for a second attempt.

    pytest-rerunfailures throws away only fixtures whose own set-up failed.
    """
    if not isinstance(item, pytest.Function) or getattr(item, "execution_count", 1) == 1:
        return
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for one in definitions:
            if one.scope == "module" and one.cached_result is not None:
                one.finish(item._request)  # type: ignore[arg-type]


@pytest.hookimpl(wrapper=True)  # xdist reads the groups in its own; then it is known what is run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, None]:
    """Have `--dist loadgroup` start each configuration in one process, and keep files whole."""
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group_of(item)))
    yield
    longest_first(items)


def longest_first(items: list[pytest.Item]) -> None:
    """So that all processes end at about the same time: servers, slow files, then what has most
    tests.
    """
    first = (CONTAINERS, *GROUPS.values(), *SLOW_FILES)
    places = {group: place for place, group in enumerate(first)}
    counts = Counter(map(named_group, items))

    def place(item: pytest.Item) -> tuple[int, int, str]:
        group = named_group(item)
        return places.get(group, len(places)), -counts[group], group

    items.sort(key=place)


def named_group(item: pytest.Item) -> str:
    """What its mark says."""
    mark = item.get_closest_marker("xdist_group")
    assert mark is not None
    return str(mark.args[0])


def group_of(item: pytest.Item) -> str:
    """The process of a run that it belongs to: that of its server, or of its file.

    All containers have one: a run has one Docker Engine, and their tests mostly wait.
    """
    if item.get_closest_marker("docker"):
        return CONTAINERS
    taken = getattr(item, "fixturenames", ())
    return next((group for name, group in GROUPS.items() if name in taken), item.location[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure comes with the end of the log of each server that the test had."""
    report = yield
    if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        for handle in item.stash.get(USED, {}).values():
            report.sections.append((f"log of {handle.project.root.name}", handle.log_tail()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why a test was tried again, and what its servers said: what passes later is worth reading."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first attempt of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.section(title, "-")
            terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def speller_handle(speller_project: Project) -> Iterator[Handle]:
    """One real Triton serving all three precisions."""
    handle = Handle(speller_project, "int8")
    yield handle
    handle.stop()


@pytest.fixture
def speller_server(request: pytest.FixtureRequest, speller_handle: Handle) -> Server:
    """It, alive."""
    return speller_handle.ready(request.node)


@pytest.fixture(scope="session")
def life_handle(
    speller_project: Project, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Handle]:
    """The int8 speller by itself, with a promise of every kind: its life is what is tested."""
    slo = {"ttft_p99_ms": 500, "itl_p99_ms": 100, "e2e_p99_ms": 10_000, "error_rate": 0.001}
    folder = tmp_path_factory.mktemp("life") / "life"
    handle = Handle(
        paced_project(
            speller_project,
            folder,
            model={"slo": slo},
            exit_timeout_seconds=EXIT_SECONDS,
            readiness_port=0,
        ),
        "int8",
    )
    yield handle
    handle.stop()


@pytest.fixture
def life(request: pytest.FixtureRequest, life_handle: Handle) -> Handle:
    """Alive, as fast as it can; the test may kill it."""
    life_handle.ready(request.node)
    return life_handle


@pytest.fixture(scope="session")
def inline_handle(
    speller_project: Project, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Handle]:
    """The int8 speller without a detokenizer step, and as one model without any."""
    folder = tmp_path_factory.mktemp("inline") / "inline"
    inline = {"serving": {"inline_detokenizer": True}}
    fused = {FUSED: {"serving": {"fused": True}}}
    project = paced_project(speller_project, folder, model=inline, others=fused)
    build_cached(project, FUSED)
    handle = Handle(project, "int8")
    yield handle
    handle.stop()


@pytest.fixture(scope="session")
def pair_handles(
    speller_project: Project, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Handle]]:
    """Two replicas of the int8 speller, which wait long for who is still connected."""
    root = tmp_path_factory.mktemp("pair")
    projects = [
        paced_project(
            speller_project, root / name, exit_timeout_seconds=EXIT_SECONDS, readiness_port=0
        )
        for name in ("first", "second")
    ]
    handles = [Handle(project, "int8") for project in projects]
    yield handles
    for handle in handles:
        handle.stop()


@pytest.fixture
def pair(request: pytest.FixtureRequest, pair_handles: list[Handle]) -> list[Handle]:
    """Both alive, as fast as they can; the test may kill them."""
    for handle in pair_handles:
        handle.ready(request.node)
    return pair_handles


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    """Tokenizers, and what the replay server says in each."""
    folder = tmp_path_factory.mktemp("kinds")
    return {name: Kind.made(name, folder / name) for name in sample_tokenizers.KINDS}


@pytest.fixture(scope="session")
def replay_project(kinds: dict[str, Kind], tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Models that say what they are scripted to, each kind with a detokenizer step, without one,
    and without any step.

    `replay` says what the prompt says, and so does `ensemble` without a seed. `slow` has a short
    queue in Triton, `unqueued` in the engine. `by_hand` is none of them: it doubles a tensor.
    """
    models = {}
    for name, kind in kinds.items():
        models[name] = ReplayModel(kind.file, kind.scripts)
        inline = {"inline_detokenizer": True}
        models[f"inline_{name}"] = ReplayModel(kind.file, kind.scripts, serving=inline)
        fused = {"fused": True}
        models[f"fused_{name}"] = ReplayModel(kind.file, kind.scripts, serving=fused)
    models["replay"] = ReplayModel(EXAMPLE / "checkpoint" / "tokenizer.json", [])
    said = Tokenizer.from_file(str(models["replay"].tokenizer_json)).encode(FOREIGN_ANSWER)
    scripts = [{"ids": said.ids}] * 8
    unary = {"unary": True}
    models[FOREIGN] = ReplayModel(models["replay"].tokenizer_json, scripts, serving=unary)
    queue = {"max_queue_size": QUEUE}
    priorities = {"priority_levels": 2, "allow_timeout_override": True}
    for name, settings in {"slow": queue | priorities, "unqueued": queue}.items():
        tokenizer = kinds["byte_level"].file
        models[name] = ReplayModel(tokenizer, [SLOWLY], PLACES, {"queue": settings})
    folder = tmp_path_factory.mktemp("replay")
    write_model(folder / "model_repository", BY_HAND, TWICE, requirements="tokenizers==0.23.3\n")
    return replay_models(folder, models)


@pytest.fixture(scope="session")
def replay_handle(replay_project: Project) -> Iterator[Handle]:
    """All of these models in one server."""
    handle = Handle(replay_project, "byte_level")
    yield handle
    handle.stop()


@pytest.fixture
def replay_server(request: pytest.FixtureRequest, replay_handle: Handle) -> Server:
    """It, alive."""
    return replay_handle.ready(request.node)


@pytest.fixture(scope="session")
def tasks_handle(
    onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Handle]:
    """A small model of each text task in one server (tests/task_models.py)."""
    project = task_project(tmp_path_factory.mktemp("tasks"), onnxruntime_environment)
    handle = Handle(project, None)
    yield handle
    handle.stop()


@pytest.fixture
def tasks_server(request: pytest.FixtureRequest, tasks_handle: Handle) -> Server:
    """It, alive."""
    return tasks_handle.ready(request.node)


@pytest.fixture(scope="session")
def trtllm_handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """The shipped checkpoint as an engine for the stand-in of TensorRT-LLM 1.2.1."""
    folder = tmp_path_factory.mktemp("trtllm")
    handle = Handle(trtllm_project(folder, world="engine", version="1.2.1"), "speller")
    yield handle
    handle.stop()


@pytest.fixture
def trtllm_server(request: pytest.FixtureRequest, trtllm_handle: Handle) -> Server:
    """It, alive."""
    return trtllm_handle.ready(request.node)


@pytest.fixture(scope="session")
def trtllm_pytorch_handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """The checkpoint itself, for a release without engines."""
    folder = tmp_path_factory.mktemp("trtllm_pytorch")
    handle = Handle(trtllm_project(folder, world="pytorch", version="1.3.0rc22"), "speller")
    yield handle
    handle.stop()


@pytest.fixture
def trtllm_pytorch_server(request: pytest.FixtureRequest, trtllm_pytorch_handle: Handle) -> Server:
    """It, alive."""
    return trtllm_pytorch_handle.ready(request.node)


@pytest.fixture(scope="session")
def tls_handle(
    speller_project: Project, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Handle]:
    """The int8 speller behind mutual TLS; `other` has the files of another authority."""
    folder = tmp_path_factory.mktemp("tls") / "tls"
    tls = tls_section(Path("certs"))
    paced_project(speller_project, folder, tls=tls)
    make_certificates(folder / "certs")
    make_certificates(folder / "other")
    file = folder / "tritonctl.yaml"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"loadtests": {"short": LOAD}}))
    handle = Handle(load_project(file), "int8")
    yield handle
    handle.stop()


@pytest.fixture
def tls(request: pytest.FixtureRequest, tls_handle: Handle) -> Handle:
    """It, alive."""
    tls_handle.ready(request.node)
    return tls_handle


@dataclass
class Traced:
    """A server that traces, and who gets the traces."""

    handle: Handle
    receiver: Receiver

    @property
    def url(self) -> str:
        """Its gRPC endpoint."""
        return self.handle.url


@pytest.fixture(scope="session")
def traced_handle(
    speller_project: Project, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Traced]:
    """The int8 speller with one request in four traced."""
    with otlp_receiver() as receiver:
        tracing = {
            "endpoint": receiver.endpoint,
            "rate": TRACE_RATE,
            "service_name": "my-speller",
        }
        folder = tmp_path_factory.mktemp("traced") / "traced"
        handle = Handle(paced_project(speller_project, folder, tracing=tracing), "int8")
        yield Traced(handle, receiver)
        handle.stop()
