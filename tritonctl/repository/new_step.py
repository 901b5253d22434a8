# SPDX-License-Identifier: Apache-2.0
"""`tritonctl new step`: a working step with a test that needs no Triton."""

from __future__ import annotations

import re
from pathlib import Path

from tritonctl.errors import UsageError
from tritonctl.host import bundled
from tritonctl.host.files import as_host_error, write_atomically
from tritonctl.repository.backends import BACKEND_FILE
from tritonctl.repository.contents import REQUIREMENTS

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Step names with a fixed meaning.
_RESERVED = ("engine", "ensemble")
_BACKEND = """\
schema = "tritonctl.python_backend/1"
name = "NAME"
summary = "Texts with their spaces tidied; empty and overlong ones refused"
max_batch_size = 64
dynamic_batching = true

# The model's parameters. tritonctl.yaml can set them for one deployment, by the step's name:
# serving: {config: {STEP: {parameters: {longest: {string_value: "500"}}}}}
[settings]
longest = "2000"

[[inputs]]
name = "text"
data_type = "TYPE_STRING"
dims = [1]
doc = "UTF-8"

[[outputs]]
name = "tidied"
data_type = "TYPE_STRING"
dims = [1]
doc = "the text, each run of white space one space"
"""
_MODEL = '''\
"""Triton's Python backend runs this: texts in, tidied texts out."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


def tidied(text, longest):
    """Return the text with single spaces. Raises ValueError for an empty or too long text."""
    words = " ".join(text.split())
    if not words:
        raise ValueError("text is empty")
    if len(words) > longest:
        raise ValueError(f"text has {len(words)} characters; the limit is {longest}")
    return words


class TritonPythonModel:
    """text BYTES[n, 1] to tidied BYTES[n, 1]."""

    def initialize(self, args):
        """Triton calls this once when it loads the model."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.longest = int(parameters["longest"]["string_value"])

    def execute(self, requests):
        """Return one response per request, in order; an invalid request fails alone."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Return the response to one request, or its error."""
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
        try:
            rows = [tidied(text.decode("utf-8"), self.longest) for text in texts.flat]
        except ValueError as error:  # also for a text that is not UTF-8
            refused = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refused)
        array = np.array([row.encode("utf-8") for row in rows], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("tidied", array.reshape(texts.shape))])
'''
_TEST = '''\
"""The step NAME, without Triton: `pytest tests`."""

import importlib.util
import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "python_backends" / "NAME"
# Modules next to model.py, and the stand-in for Triton's module next to this file.
sys.path[:0] = [str(FOLDER), str(Path(__file__).parent)]
import triton_python_backend_utils as pb_utils  # noqa: E402


@pytest.fixture
def model():
    """The model as Triton creates it, with the settings of backend.toml."""
    specification = importlib.util.spec_from_file_location("NAME", FOLDER / "model.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    settings = tomllib.loads((FOLDER / "backend.toml").read_text(encoding="utf-8"))["settings"]
    parameters = {key: {"string_value": value} for key, value in settings.items()}
    made = module.TritonPythonModel()
    made.initialize({"model_config": json.dumps({"parameters": parameters})})
    return made


def request(*texts):
    """A request with a row for each text."""
    array = np.array([[text.encode()] for text in texts], dtype=np.object_)
    return pb_utils.InferenceRequest([pb_utils.Tensor("text", array)])


def test_tidied(model):
    """Rows stay rows."""
    [response] = model.execute([request("  7342   in\\nEnglish: ", "1")])
    tensor = pb_utils.get_output_tensor_by_name(response, "tidied")
    assert tensor.as_numpy().tolist() == [[b"7342 in English:"], [b"1"]]


@pytest.mark.parametrize("text", ["   ", "x" * 2001])
def test_refused_alone(model, text):
    """Other requests of the batch succeed."""
    refused, answered = model.execute([request(text), request("1")])
    assert refused.has_error()
    assert "text" in refused.error().message()
    assert not answered.has_error()
'''
STAND_IN = '''\
"""A test stand-in for Triton's module of this name, with the classes that a model needs."""


class Tensor:
    """A named numpy array."""

    def __init__(self, name, array):
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class TritonError(Exception):
    """An error with one of Triton's codes."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED = range(6)

    def __init__(self, message, code=INTERNAL):
        super().__init__(message)
        self._code = code

    def message(self):
        return str(self)

    def code(self):
        return self._code


class TritonModelException(Exception):
    """A model cannot be loaded or cannot answer."""


class InferenceRequest:
    """Input tensors; an optional one may be missing."""

    def __init__(self, inputs, parameters=""):
        self._inputs, self._parameters = list(inputs), parameters

    def inputs(self):
        return self._inputs

    def parameters(self):
        return self._parameters


class InferenceResponse:
    """Output tensors, or an error."""

    def __init__(self, output_tensors=(), error=None):
        self._outputs, self._error = list(output_tensors), error

    def output_tensors(self):
        return self._outputs

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error


def _named(tensors, name):
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def get_input_tensor_by_name(request, name):
    """Return a request's tensor, or None."""
    return _named(request.inputs(), name)


def get_output_tensor_by_name(response, name):
    """Return a response's tensor, or None."""
    return _named(response.output_tensors(), name)
'''


def write_step(root: Path, name: str) -> list[Path]:
    """Write python_backends/NAME and its test into a project; return the files.

    Raises UsageError for an invalid or existing name, HostError if a file cannot be written.
    """
    _refuse_name(root, name)
    pins = bundled.text("python_backends/requirements.txt").splitlines()
    numpy = next(line for line in pins if line.startswith("numpy"))
    folder = root / "python_backends" / name
    files = {
        folder / BACKEND_FILE: _BACKEND,
        folder / "model.py": _MODEL,
        folder / REQUIREMENTS: "# What model.py imports. All Python models of a server share one "
        f"environment.\n{numpy}\n",
        root / "tests" / f"test_{name}.py": _TEST,
        root / "tests" / "triton_python_backend_utils.py": STAND_IN,
    }
    return write_new({file: text.replace("NAME", name) for file, text in files.items()})


def write_new(files: dict[Path, str]) -> list[Path]:
    """Write files that do not exist yet; return the new ones. Raises HostError."""
    written = []
    for file, text in files.items():
        if not file.exists():
            with as_host_error(file):
                file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text)
            written.append(file)
    return written


def _refuse_name(root: Path, name: str) -> None:
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise UsageError(
            f"`{name}` cannot be the name of a step",
            remedy="use letters, digits and `_`, beginning with a letter; "
            f"{' and '.join(f'`{reserved}`' for reserved in _RESERVED)} are reserved",
        )
    for place in (root / "python_backends" / name, root / "tests" / f"test_{name}.py"):
        if place.exists():
            raise UsageError(f"{place} already exists", remedy="edit it, or choose another name")
    if name in bundled.names("python_backends", ""):
        raise UsageError(
            f"tritonctl ships python_backends/{name}, which this would replace",
            remedy="choose another name",
        )
