# SPDX-License-Identifier: Apache-2.0
"""What a model.py imports, how its methods can be called, what they hand over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check_models.models import CONFIG, MODEL, python_model
from tests.unit.checks.test_tensors import findings, only, rules, underlined
from tests.unit.checks.test_tensors_python import code, text_of

UTILS = "triton_python_backend_utils"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"from {UTILS} import Tensor", ["TC224"]),
        (f"from {UTILS} import get_input_tensor_by_name, InferenceResponse as R", ["TC224"]),
        (f"from {UTILS} import get_input_tensor_by_name", []),
        (f"from {UTILS} import *", []),
        (f"try:\n    from {UTILS} import Tensor\nexcept ImportError: pass", []),
        (f"def late():\n    from {UTILS} import Tensor", []),
    ],
)
def test_imports(line: str, expected: list[str], tmp_path: Path) -> None:
    """Only what is surely run while the file is imported."""
    assert rules(tmp_path, text_of(f"{line}\n{MODEL}")) == expected


def test_an_import_is_underlined(tmp_path: Path) -> None:
    """With what to write instead."""
    found = only(tmp_path, text_of(f"from {UTILS} import InferenceResponse, Tensor\n{MODEL}"))
    assert underlined(found) == f"from {UTILS} import InferenceResponse, Tensor"
    assert "no InferenceResponse and no Tensor yet" in found.message
    assert "pb_utils.InferenceResponse" in found.fix


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("def initialize(self, args): ...", []),
        ("def initialize(self, args, more=1): ...", []),
        ("def initialize(self, *args): ...", []),
        ("@staticmethod\n    def initialize(args): ...", []),
        ("@logged\n    def initialize(self): ...", []),
        ("def initialize(self): ...", ["TC226"]),
        ("def initialize(args): ...", ["TC226"]),
        ("def initialize(self, args, more): ...", ["TC226"]),
        ("def initialize(self, args, *, more): ...", ["TC226"]),
        ("def __init__(self): ...", []),
        ("def __init__(self, path=None): ...", []),
        ("def __init__(self, args): ...", ["TC226"]),
        ("def finalize(self): ...", []),
        ("@staticmethod\n    def auto_complete_config(config): return config", []),
        ("@classmethod\n    def auto_complete_config(cls, config): return config", []),
        ("def auto_complete_config(config): return config", []),
        ("def auto_complete_config(self, config): return config", ["TC226"]),
    ],
)
def test_signatures(method: str, expected: list[str], tmp_path: Path) -> None:
    """Whatever takes the arguments that the backend gives will do."""
    text = MODEL.replace("    def execute", f"    {method}\n\n    def execute")
    assert rules(tmp_path, text_of(text)) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("self, requests", []),
        ("self, requests, *more", []),
        ("self, *requests", []),
        ("requests", ["TC227"]),
        ("self", ["TC227"]),
        ("self, requests, more", ["TC227"]),
    ],
)
def test_the_signature_of_execute(arguments: str, expected: list[str], tmp_path: Path) -> None:
    """It shows with the first request."""
    text = MODEL.replace("self, requests", arguments)
    assert rules(tmp_path, text_of(text)) == expected


RESPONSE = "pb_utils.InferenceResponse(output_tensors=[])"
LISTED = """\
scores = [1.0 for _ in requests]
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", scores)])]
"""
REPLACED = """\
x = [1.0]
x = np.array(x)
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", x)])]
"""
DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }\n"


@pytest.mark.parametrize(
    ("body", "config", "expected"),
    [
        (f"answers = [{RESPONSE}]", CONFIG, ["TC228"]),
        (f"answers = [{RESPONSE}]\nreturn", CONFIG, ["TC228"]),
        (f"def inner(): return {RESPONSE}\ninner()", CONFIG, ["TC228"]),
        (f"return [{RESPONSE}]", CONFIG, []),
        (f"answers = [{RESPONSE}]", DECOUPLED, []),
        (f"requests[0].get_response_sender().send({RESPONSE})", CONFIG, []),
        (f"x = {RESPONSE}\nraise NotImplementedError", CONFIG, []),
        ("self.engine.enqueue(requests)", CONFIG, []),
    ],
)
def test_nothing_returned(body: str, config: str, expected: list[str], tmp_path: Path) -> None:
    """Where responses are made, and not sent in another way."""
    assert rules(tmp_path, code(body, config)) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"return {RESPONSE}", "execute returns a response instead of a list of them"),
        (
            'x = pb_utils.Tensor("OUTPUT", y)\nreturn [pb_utils.InferenceResponse(x)]',
            "output_tensors is one tensor, not a list",
        ),
        (
            'return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", [1.0, 2.0])])]',
            "the tensor OUTPUT is made of a list, not of an array",
        ),
        (
            LISTED,
            "the tensor OUTPUT is made of a list, not of an array",
        ),
        (
            'return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", "text")])]',
            "the tensor OUTPUT is made of 'text', not of an array",
        ),
    ],
)
def test_wrong_arguments(body: str, message: str, tmp_path: Path) -> None:
    """What the bindings refuse, whatever the requests are."""
    found = only(tmp_path, code(body))
    assert (found.rule, found.message) == ("TC229", message)


@pytest.mark.parametrize(
    "body",
    [
        f"def one(): return {RESPONSE}\nreturn [one()]",
        "tensors = []\nreturn [pb_utils.InferenceResponse(tensors)]",
        REPLACED,
        'return [pb_utils.InferenceResponse([torch.Tensor("OUTPUT", [1])])]',
    ],
)
def test_arguments_that_may_be_right(body: str, tmp_path: Path) -> None:
    """Given twice, of a function within, of another library."""
    assert "TC229" not in rules(tmp_path, code(body))


@pytest.mark.parametrize(
    "body",
    [
        'with self.assertRaises(TypeError):\n    pb_utils.Tensor("OUTPUT", [1, 2])',
        'with pytest.raises(TypeError) as caught, other():\n    pb_utils.Tensor("OUTPUT", [1])',
        'self.assertRaises(TypeError, lambda: pb_utils.Tensor("OUTPUT", [1, 2]))',
        'with suppress(TypeError):\n    pb_utils.InferenceResponse(pb_utils.Tensor("OUTPUT", x))',
    ],
)
def test_a_failure_that_the_code_expects(body: str, tmp_path: Path) -> None:
    """A test inside a model.py tries what is wrong on purpose."""
    assert "TC229" not in rules(tmp_path / "expected", code(body))
    bare = 'pb_utils.Tensor("OUTPUT", [1, 2])'
    assert "TC229" in rules(tmp_path / "bare", code(f"with open(x):\n    {bare}"))


def test_a_copy_of_the_backend_s_module(tmp_path: Path) -> None:
    """Beside model.py only: the one in the model's folder comes later."""
    name = f"{UTILS}.py"
    found = only(tmp_path / "a", python_model() | {f"m/1/{name}": "x = 1\n"})
    assert (found.rule, found.path) == ("TC225", str(tmp_path / "a" / "m" / "1" / name))
    assert findings(tmp_path / "b", python_model() | {f"m/docs/{name}": "x = 1\n"}) == []
