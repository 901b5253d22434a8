# SPDX-License-Identifier: Apache-2.0
"""The servers that run.py compares: all are up together, each stopped while it is not its turn."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import SILENT, running, write_project
from meter import MARKER, processes
from rounds import write
from servers import Subject, Up, peer, python_of
from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.builds.runners import builder_recipe
from tritonctl.host.environments import ensure_environment, environment_python

HERE = Path(__file__).resolve().parent
ROWS = 32


@dataclass(frozen=True)
class Served:
    """What all servers load, and where each may write."""

    subject: Subject
    engines: Path
    settings: Mapping[str, Any]

    def of(self, name: str, **settings: Any) -> Subject:
        """A folder for one server, with its settings."""
        folder = self.subject.folder / name
        folder.mkdir(exist_ok=True)
        own = replace(self.subject, folder=folder)
        write(own.settings, {**self.settings, **settings})
        return own


Way = Callable[[Served, str], AbstractContextManager[Up]]


@contextmanager
def ours(served: Served, marker: str, **serving: Any) -> Iterator[Up]:
    """What `tritonctl up` starts, with these fields of `serving`."""
    subject = served.of(marker)
    models = {name: {**model, "serving": serving} for name, model in subject.models.items()}
    project = write_project(subject.folder, models, engines=str(served.engines))
    os.environ[MARKER] = marker
    with running(project) as state:
        del os.environ[MARKER]
        yield Up("grpc", state.grpc_url, marker)


def bentoml(served: Served, marker: str, **settings: Any) -> AbstractContextManager[Up]:
    """`bentoml serve`."""
    command = ["-m", "bentoml", "serve", "bentoml_texts:Embeddings", "--host", "127.0.0.1"]
    subject = served.of(marker, **settings)
    return peer(subject, marker, "bentoml", [*command, "--port"], folder=HERE)


def litserve(served: Served, marker: str, **settings: Any) -> AbstractContextManager[Up]:
    """A program that runs LitServer."""
    return peer(
        served.of(marker, **settings), marker, "litserve", ["litserve_texts.py"], folder=HERE
    )


def ray(served: Served, marker: str, **settings: Any) -> AbstractContextManager[Up]:
    """A program that runs a Ray cluster of one node, and Serve on it."""
    return peer(served.of(marker, **settings), marker, "ray", ["ray_texts.py"], folder=HERE)


def infinity(served: Served, marker: str, engine: str) -> AbstractContextManager[Up]:
    """`infinity_emb v2`: its own tokenizer, batches and pooling."""
    checkpoint = served.settings["checkpoint" if engine == "torch" else "pooled_by_infinity"]
    command = [
        "-m", "infinity_emb.cli", "v2", "--model-id", str(checkpoint), "--engine", engine,
        "--device", "cpu", "--dtype", "float32", "--batch-size", str(ROWS), "--host", "127.0.0.1",
        "--pooling-method", "mean", "--no-bettertransformer", "--no-model-warmup",
        "--served-model-name", "model", "--port",
    ]  # fmt: skip
    subject = replace(
        served.of(marker), path="/embeddings", probe={"model": "model", "input": ["a text"]}
    )
    return peer(subject, marker, "infinity", command, protocol="openai")


@contextmanager
def alone(served: Served, marker: str, library: str, python: Callable[[], Path]) -> Iterator[Up]:
    """No server: alone.py is load and library."""
    served.of(marker)
    yield Up("none", "", marker, (python(), HERE / "alone.py", library, "load"))


def builders_python() -> Path:
    """The builder's interpreter, which has the reference library."""
    return environment_python(
        ensure_environment(builder_recipe(builder_named("onnxruntime")), SILENT)
    )


ONE: dict[str, Any] = {"workers": 1, "threads": 0, "rows": ROWS}
TWO: dict[str, Any] = {"workers": 2, "threads": 1, "rows": ROWS}
ALONE: dict[str, Any] = {"workers": 1, "threads": 0, "rows": 1}  # no batches
BOTH: dict[str, Any] = {"workers": 2, "threads": 1, "rows": 1}
TWICE: dict[str, Any] = {
    "instance_group": [{"kind": "KIND_CPU", "count": 2}],
    "session": {"intra_op_num_threads": 1},
}
WAYS: dict[str, Way] = {
    "fused": partial(ours, fused=True),
    "fused one run": partial(ours, fused=True, parallel_runs=1),
    "fused 2x1": partial(ours, fused=True, **TWICE),
    "ensemble": ours,
    "bentoml": partial(bentoml, **ONE),
    "bentoml 2x1": partial(bentoml, **TWO),
    "litserve": partial(litserve, **ONE, wait=0.002),
    "litserve 2x1": partial(litserve, **TWO, wait=0.002),
    "litserve alone": partial(litserve, **ALONE, wait=0.0),
    "litserve alone 2x1": partial(litserve, **BOTH, wait=0.0),
    "ray": partial(ray, **ONE, wait=0.002),
    "ray 2x1": partial(ray, **TWO, wait=0.002),
    "ray alone": partial(ray, **ALONE, wait=0.0),
    "infinity": partial(infinity, engine="optimum"),
    "infinity torch": partial(infinity, engine="torch"),
    "onnxruntime": partial(alone, library="onnxruntime", python=partial(python_of, "engine")),
    "sentence-transformers": partial(
        alone, library="sentence_transformers", python=builders_python
    ),
}


def told(up: Up, number: signal.Signals) -> None:
    """A signal to all of a server's processes."""
    for pid in processes(up.marker):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
