# SPDX-License-Identifier: Apache-2.0
"""The step language_filter, without Triton: `pytest examples/language-filter/tests`."""

import importlib.util
import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "python_backends" / "language_filter"
# What lies beside model.py, and Triton's module, which has a stand-in beside this file.
sys.path[:0] = [str(FOLDER), str(Path(__file__).parent)]
import triton_python_backend_utils as pb_utils  # noqa: E402


@pytest.fixture
def model():
    """As Triton makes it: with the settings of backend.toml."""
    specification = importlib.util.spec_from_file_location("language_filter", FOLDER / "model.py")
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
    return pb_utils.InferenceRequest([pb_utils.Tensor("question", array)])


@pytest.mark.parametrize(
    ("question", "prompt"),
    [
        ("How do I say 7342?", "7342 in English:"),
        ("515", "515 in English:"),
        ("515 อ่านว่าอะไร", "515 in Thai:"),
        ("๕๑๕", "515 in Thai:"),
        ("515를 어떻게 읽어요?", "515 in Korean:"),
        ("५१५ को कैसे पढ़ते हैं?", "515 in Hindi:"),
        ("515怎么读？", "515 in Chinese:"),
        ("🔢 515", "515 in Emoji:"),
        ("007 for James", "7 in English:"),
    ],
)
def test_prompt(model, question, prompt):
    """In the language of the question, the number in plain digits."""
    [response] = model.execute([request(question)])
    assert not response.has_error(), response.error()
    tensor = pb_utils.get_output_tensor_by_name(response, "prompt")
    assert tensor.as_numpy().tolist() == [[prompt.encode()]]


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ("как читать 515?", "asked in Cyrillic; the languages are English, Chinese,"),
        ("515は何ですか", "mixes|asked in"),
        ("say 515 ตัวเลขxyz", "mixes LATIN and THAI letters"),
        ("", "0 numbers"),
        ("5 or 6?", "2 numbers"),
        ("1234567", "7 digits"),
    ],
)
def test_refused_alone(model, question, why):
    """With the reason; its neighbour is answered."""
    refused, answered = model.execute([request(question), request("515")])
    assert any(part in refused.error().message() for part in why.split("|"))
    assert refused.error().code() == pb_utils.TritonError.INVALID_ARG
    assert not answered.has_error()
