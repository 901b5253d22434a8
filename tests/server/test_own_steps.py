# SPDX-License-Identifier: Apache-2.0
"""Steps and graphs of a project's own, served: before and after a model that streams, nested.

guarded: tidy → echo      outer: tidy → guarded      loud: echo → louder (once per response)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import EXAMPLE
from tests.server.replay import ReplayModel, replay_models
from tests.servers import Handle
from tritonctl.errors import ConfigurationError, RequestRejectedError, ServerError, TritonctlError
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.repository.new_ensemble import EnsembleOptions, new_ensemble
from tritonctl.repository.new_step import write_step
from tritonctl.runtimes.health import check_health
from tritonctl.runtimes.lifecycle import running_server
from tritonctl.runtimes.reload import reload

pytestmark = pytest.mark.server

TEXT = "seven thousand three hundred forty-two, 七千三百四十二, 7️⃣"
USERS = 8
CODE = Path("python_backends", "tidy", "model.py")
LOUD = """\
schema: tritonctl/ensemble/v1
task: loud
summary: a step behind a stream
max_batch_size: 1
inputs:
  - {name: text_input, data_type: TYPE_STRING, dims: [1]}
  - {name: stream, data_type: TYPE_BOOL, dims: [1], optional: true}
outputs:
  - {name: text_output, data_type: TYPE_STRING, dims: [-1]}
  - {name: num_input_tokens, data_type: TYPE_INT32, dims: [1]}
  - {name: num_output_tokens, data_type: TYPE_INT32, dims: [1]}
  - {name: finish_reason, data_type: TYPE_STRING, dims: [1]}
  - {name: output_ids, data_type: TYPE_INT32, dims: [-1]}
steps:
  echo:
    model: echo
    inputs: {text_input: text_input, stream: stream}
    outputs:
      text_output: _text
      num_input_tokens: num_input_tokens
      num_output_tokens: num_output_tokens
      finish_reason: finish_reason
      output_ids: output_ids
  louder:
    backend: louder
    inputs: {text: _text}
    outputs: {louder: text_output}
"""
DIM, OPEN = "dims = [1]", "dims = [-1]"
BATCHED, ALONE = "max_batch_size = 64\ndynamic_batching = true", "max_batch_size = 0"


def _louder(root: Path) -> None:
    """The written step, changed: upper case; `text_output` has no batch dimension."""
    write_step(root, "louder")
    folder = root / "python_backends" / "louder"
    toml = (folder / "backend.toml").read_text(encoding="utf-8")
    toml = toml.replace('"tidied"', '"louder"').replace(DIM, OPEN).replace(BATCHED, ALONE)
    (folder / "backend.toml").write_text(toml, encoding="utf-8")
    code = (folder / "model.py").read_text(encoding="utf-8")
    code = code.replace('"tidied"', '"louder"').replace("tidied(text.decode(", "(text.decode(")
    code = code.replace('("utf-8"), self.longest)', '("utf-8").upper())')
    (folder / "model.py").write_text(code, encoding="utf-8")


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """Their server."""
    folder = tmp_path_factory.mktemp("own_steps")
    # With a seed, as smoke requests have, it says what is scripted.
    echo = ReplayModel(EXAMPLE / "checkpoint" / "tokenizer.json", [{"ids": [70, 71, 72]}])
    names = ("guarded", "outer", "loud")
    project = replay_models(folder, {"echo": echo}, {name: {} for name in names})
    write_step(folder, "tidy")
    _louder(folder)
    (folder / "ensembles").mkdir()
    (folder / "ensembles" / "loud.yaml").write_text(LOUD, encoding="utf-8")
    for name, within in (("guarded", "echo"), ("outer", "guarded")):
        graph, _ = new_ensemble(project, EnsembleOptions(name, within, "tidy"))
        (folder / "ensembles" / f"{name}.yaml").write_text(graph, encoding="utf-8")
    one = Handle(project, "guarded")
    yield one
    one.stop()


@pytest.fixture
def project(handle: Handle, request: pytest.FixtureRequest) -> Iterator[Project]:
    """Served, and answering; the step's code is afterwards what it was."""
    code = handle.project.root / CODE
    before = code.read_text(encoding="utf-8")
    handle.ready(request.node)
    yield handle.project
    code.write_text(before, encoding="utf-8")


@pytest.fixture
def client(project: Project) -> Iterator[TritonClient]:
    """Of the server that runs."""
    with TritonClient(running_server(project).grpc_url) as one:
        yield one


@pytest.mark.parametrize("name", ["echo", "guarded", "outer"])
def test_a_stream_through_them(client: TritonClient, name: str) -> None:
    """Byte by byte what the model itself says, in several parts."""
    chunks = list(client.stream(name, TEXT, timeout=60))
    assert "".join(chunk.text for chunk in chunks) == TEXT
    assert len(chunks) > 1
    assert chunks[-1].finish_reason


def test_the_step_does_its_work(client: TritonClient) -> None:
    """It is the step's text that the model gets; a text that it refuses has its reason."""
    assert client.generate("guarded", "  a \n b ", timeout=60).text == "a b"
    with pytest.raises(RequestRejectedError, match="text is empty"):
        client.generate("outer", "   ", timeout=60)
    tensor = np.array([[b" 1  2 "]], dtype=object)
    answer = client.infer("guarded_tidy", {"text": tensor}, timeout=60)
    assert answer["tidied"].tolist() == [[b"1 2"]]


def test_a_step_behind_a_stream(client: TritonClient) -> None:
    """Once for each response, in their order."""
    answer = client.generate("loud", TEXT, timeout=60)
    assert answer.text == TEXT.upper()


def _edit(project: Project, old: str, new: str) -> str:
    file = project.root / CODE
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")
    return text


def test_reload_of_an_ensemble(project: Project, client: TritonClient) -> None:
    """A new version of its step, under load; the model that it ends in is not touched."""
    before = _edit(project, '" ".join(', '"-".join(')
    with _used(project, "guarded", " a  b ") as (answers, errors):
        done = reload(project, "guarded", Silent())
    assert not errors, errors
    assert set(answers) <= {"a b", "a-b"}
    assert done.fingerprint is None
    assert done.unloaded == ()
    assert client.generate("guarded", "a  b", timeout=60).text == "a-b"
    assert client.generate("echo", "a  b", timeout=60).text == "a  b"
    (project.root / CODE).write_text(before, encoding="utf-8")
    assert check_health(running_server(project)).ready


def test_what_cannot_be_imported(project: Project, client: TritonClient) -> None:
    """Told with its line before anything is loaded; what is served goes on."""
    file = project.root / CODE
    before = _edit(project, "import json\n", "import json\nimport nowhere\n")
    with pytest.raises(ConfigurationError) as caught:
        reload(project, "guarded", Silent())
    line = file.read_text(encoding="utf-8").splitlines().index("import nowhere") + 1
    assert caught.value.problem.startswith(f"{file}:{line} imports nowhere")
    _edit(project, "import nowhere\n", "def (:\n")
    with pytest.raises(ConfigurationError, match="is not valid Python"):
        reload(project, "guarded", Silent())
    file.write_text(before, encoding="utf-8")
    assert client.generate("guarded", TEXT, timeout=60).text


@pytest.mark.exhaustive
def test_a_version_that_does_not_load(project: Project, client: TritonClient) -> None:
    """The one before goes on, and the next good one is taken, in every ensemble around it."""
    before = _edit(project, "import json\n", "import json\nraise OSError(7)\n")
    with pytest.raises(ServerError, match="the previous version of guarded keeps serving"):
        reload(project, "guarded", Silent())
    assert client.generate("guarded", TEXT, timeout=60).text
    (project.root / CODE).write_text(before.replace('" ".join(', '"_".join('), encoding="utf-8")
    for name in ("guarded", "outer"):
        reload(project, name, Silent())
    assert client.generate("outer", "a  b", timeout=60).text == "a_b"
    (project.root / CODE).write_text(before, encoding="utf-8")
    for name in ("guarded", "outer"):
        reload(project, name, Silent())
    assert client.generate("outer", "a  b", timeout=60).text == "a b"


def test_reload_of_a_model_that_is_a_step(project: Project, client: TritonClient) -> None:
    """Under load on those that it is a step of: no request is lost, all answer as before."""
    before = client.generate("outer", TEXT, timeout=60).text
    with _used(project, "outer", TEXT) as (answers, errors):
        reload(project, "echo", Silent())
    assert not errors, errors
    assert set(answers) == {before}
    assert client.generate("echo", TEXT, timeout=60).text == TEXT
    assert client.generate("outer", TEXT, timeout=60).text == before
    assert check_health(running_server(project)).ready


class _used:  # noqa: N801 - reads as what it does
    """Users of a model without a pause: what they were answered, and every error."""

    def __init__(self, project: Project, name: str, prompt: str) -> None:
        self._url, self._name, self._prompt = running_server(project).grpc_url, name, prompt
        self._done = threading.Event()
        self._users = [threading.Thread(target=self._use) for _ in range(USERS)]
        self.answers: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()

    def __enter__(self) -> tuple[Counter[str], Counter[str]]:
        for user in self._users:
            user.start()
        return self.answers, self.errors

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for user in self._users:
            user.join()

    def _use(self) -> None:
        with TritonClient(self._url) as client:
            while not self._done.is_set():
                try:
                    self.answers[client.generate(self._name, self._prompt, timeout=60).text] += 1
                except TritonctlError as error:
                    self.errors[error.problem] += 1
