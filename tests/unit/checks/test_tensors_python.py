# SPDX-License-Identifier: Apache-2.0
"""A model.py against its configuration: what is reported, where, and above all what is not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.check_models.models import CONFIG, MODEL, python_model
from tests.unit.checks.test_tensors import findings, only, rules, underlined
from tritonctl.checks.examples.files import Example

HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\n"
BATCHING = CONFIG + "dynamic_batching { }\n"


def code(body: str, config: str = CONFIG, head: str = HEAD) -> Example:
    """A model with this execute."""
    indented = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8)
    text = f"{head}class TritonPythonModel:\n    def execute(self, requests):\n{indented}\n"
    return {**python_model(config), "m/1/model.py": text}


def text_of(text: str, config: str = CONFIG) -> Example:
    return {**python_model(config), "m/1/model.py": text}


# What the backend can load.


def test_a_syntax_error(tmp_path: Path) -> None:
    """At its place, in the words of Python."""
    found = only(tmp_path, text_of(HEAD + "x = (1,\n"))
    assert (found.rule, found.line, found.column) == ("TC220", 5, 5)
    assert found.path == str(tmp_path / "m/1/model.py")
    assert "was never closed" in found.message


@pytest.mark.parametrize(
    "line",
    [
        "type Point = tuple[float, float]",
        "def first[T](values: list[T]) -> T: ...",
        "class Box[T]: ...",
        'name = f"{values["key"]}"',
        'page = t"{values}"',
    ],
)
def test_newer_python_is_no_syntax_error(line: str, tmp_path: Path) -> None:
    """Which Python serves the model is unknown."""
    assert rules(tmp_path, text_of(f"{MODEL}\n{line}\n")) == []


@pytest.mark.parametrize(
    "line",
    [
        "from implementation import *",
        "from implementation import TritonPythonModel",
        "from implementation import Model as TritonPythonModel",
        "from implementation import make\nTritonPythonModel = make()",
        'globals()["Triton" + "PythonModel"] = 1',
        "if x:\n    class TritonPythonModel: ...",
    ],
)
def test_a_class_from_elsewhere(line: str, tmp_path: Path) -> None:
    """Bound by other means than a class statement."""
    assert rules(tmp_path, text_of(line + "\n")) == []


def test_a_class_of_another_name(tmp_path: Path) -> None:
    """The nearest one is shown; an empty file is a file without it."""
    found = only(tmp_path / "a", text_of(MODEL.replace("TritonPythonModel", "TritonPytonModel")))
    assert (found.rule, found.line) == ("TC221", 4)
    assert found.message == "model.py has no class TritonPythonModel, but TritonPytonModel"
    assert rules(tmp_path / "b", text_of("# TritonPythonModel\n")) == ["TC221"]


@pytest.mark.parametrize(
    "text",
    [
        "class Base:\n    def execute(self, r): ...\nclass TritonPythonModel(Base): ...\n",
        "class TritonPythonModel:\n    from x import execute\n",
        "class TritonPythonModel:\n    execute = lambda self, requests: []\n",
        "class TritonPythonModel: ...\nTritonPythonModel.execute = print\n",
        "@decorated\nclass TritonPythonModel: ...\n",
        "class TritonPythonModel:\n    async def execute(self, requests): ...\n",
    ],
)
def test_an_execute_from_elsewhere(text: str, tmp_path: Path) -> None:
    """Inherited, assigned, decorated."""
    assert "TC222" not in rules(tmp_path, text_of(text))


AUTO = """\
    @staticmethod
    def auto_complete_config(config):
        {body}
        return config

    def execute"""


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("config.set_max_batch_size(4)", "max_batch_size 4, which is 8"),
        ("config.set_max_batch_size(16)", None),
        ("config.set_max_batch_size(config.size)", None),
        ("if old: config.set_max_batch_size(4)", None),
        (
            'config.add_input({"name": "INPUT", "data_type": "TYPE_FP16", "dims": [4]})',
            "INPUT is TYPE_FP16, which is TYPE_FP32",
        ),
        ('config.add_input({"name": "OTHER", "data_type": "TYPE_FP16", "dims": [4]})', None),
        (
            'config.add_input({"name": "INPUT", "data_type": config.kind, "dims": [-1]})',
            "INPUT has dims [-1], which are [4]",
        ),
        (
            'config.add_input({"name": "INPUT", "data_type": config.kind, "dims": config.dims})',
            None,
        ),
        (
            'config.add_output({"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [-1]})',
            "OUTPUT has dims [-1], which are [4]",
        ),
        ("for one in outputs: config.add_output(one)", None),
    ],
)
def test_auto_complete(body: str, problem: str | None, tmp_path: Path) -> None:
    """Only what stands there, and is surely said."""
    text = MODEL.replace("    def execute", AUTO.format(body=body))
    found = findings(tmp_path, text_of(text))
    assert [one.rule for one in found] == (["TC223"] if problem else [])
    if problem:
        assert found[0].message == f"auto_complete_config says {problem} in config.pbtxt"
        assert found[0].line == 7


# Inputs.

GET = "pb_utils.get_input_tensor_by_name"


@pytest.mark.parametrize(
    "body",
    [
        f'for request in requests:\n    x = {GET}(request, "MASK").as_numpy()',
        f'for i, request in enumerate(requests):\n    x = {GET}(request, name="MASK").as_numpy()',
        f'for request in requests:\n    x = {GET}(request, "MASK")\n    y = x.as_numpy()[0]',
        f'x = {GET}(requests[0], "MASK").to_dlpack()\nfor request in requests: use(x, request)',
    ],
)
def test_a_surely_used_input(body: str, tmp_path: Path) -> None:
    """As the documentation's examples do it."""
    found = only(tmp_path, code(body))
    assert found.rule == "TC230"
    assert underlined(found).startswith(GET)
    assert "the input MASK is not declared" in found.message


@pytest.mark.parametrize(
    "body",
    [
        f'for request in requests:\n    x = {GET}(request, "MASK")\n    if x: x.as_numpy()',
        f'for request in requests:\n    if old: continue\n    {GET}(request, "MASK").as_numpy()',
        f'x = {GET}(requests[0], "MASK")\nif x is None: x = other()\nx.as_numpy()',
        f'def later(): return {GET}(requests[0], "MASK").as_numpy()',
        f'for one in self.kept: {GET}(one, "MASK").as_numpy()',
        f'return [{GET}(one, "MASK").as_numpy() for one in requests if one]',
        f'assert old\n{GET}(requests[0], "MASK").as_numpy()',
    ],
)
def test_a_perhaps_unused_input(body: str, tmp_path: Path) -> None:
    """It is None, but nothing may come of that."""
    assert rules(tmp_path, code(body)) == ["TC231"]


@pytest.mark.parametrize(
    "body",
    [
        f'{GET}(requests[0], "INPUT").as_numpy()',
        f"{GET}(requests[0], self.name).as_numpy()",
        f'y = old and {GET}(requests[0], "MASK").as_numpy()',
        f'if self.masked: {GET}(requests[0], "MASK").as_numpy()',
        f'try:\n    {GET}(requests[0], "MASK").as_numpy()\nexcept AttributeError: pass',
        f'pb_utils.InferenceRequest(model_name="other")\n{GET}(request, "MASK").as_numpy()',
    ],
)
def test_inputs_that_may_be_there(body: str, tmp_path: Path) -> None:
    """Declared, of a name that is not in the code, only perhaps read, of another request."""
    assert rules(tmp_path, code(body)) == []


def test_inputs_that_the_code_adds(tmp_path: Path) -> None:
    """auto_complete_config declares, too; where its names cannot be read, nothing is said."""
    reading = MODEL.replace('"INPUT"', '"MASK"')
    for argument in ('{"name": "MASK", "data_type": "TYPE_FP32", "dims": [4]}', "config.given"):
        text = reading.replace("    def execute", AUTO.format(body=f"config.add_input({argument})"))
        assert rules(tmp_path / argument[:3], text_of(text)) == []


def test_sequence_controls_are_inputs(tmp_path: Path) -> None:
    """Triton adds them to every request."""
    control = (
        '{ name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } ] }'
    )
    config = f"{CONFIG}sequence_batching {{ control_input [ {control} ] }}\n"
    assert rules(tmp_path, code(f'{GET}(requests[0], "START").as_numpy()', config)) == []


# Outputs.


def answer(tensors: str, before: str = "") -> str:
    return f"{before}\nreturn [pb_utils.InferenceResponse(output_tensors=[{tensors}])]"


TENSOR = 'pb_utils.Tensor("{}", array)'
LISTED = """\
tensors = [pb_utils.Tensor("OUTPUT", array)]
tensors.append(more)
return [pb_utils.InferenceResponse(tensors)]
"""
TWO = CONFIG + 'output [ { name: "SCORE" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'


def test_an_undeclared_output(tmp_path: Path) -> None:
    """One finding, although the declared one is then missing."""
    found = only(tmp_path, code(answer(TENSOR.format("LOGITS"))))
    assert (found.rule, found.severity) == ("TC232", "warning")
    assert found.message.startswith("the output LOGITS is made and not declared")


def test_an_output_that_is_never_made(tmp_path: Path) -> None:
    """At its name in the configuration."""
    found = only(tmp_path, code(answer(TENSOR.format("OUTPUT")), TWO))
    assert (found.rule, found.line, underlined(found)) == ("TC233", 6, '"SCORE"')


@pytest.mark.parametrize(
    "body",
    [
        answer("a, b", f"a = {TENSOR.format('OUTPUT')}\nb = {TENSOR.format('SCORE')}"),
        answer("*tensors"),
        answer("a, self.score(array)", f"a = {TENSOR.format('OUTPUT')}"),
        answer("a, b", f"a = {TENSOR.format('OUTPUT')}\nb = pb_utils.Tensor(name, array)"),
        answer("a, b", f"a = {TENSOR.format('OUTPUT')}\nfor b in several: pass"),
        LISTED,
        "return [pb_utils.InferenceResponse(**given)]",
        "return respond(requests)",
        answer('pb_utils.Tensor.from_dlpack("OUTPUT", x), pb_utils.Tensor.from_dlpack("SCORE", y)'),
    ],
)
def test_outputs_that_may_be_made(body: str, tmp_path: Path) -> None:
    """Where one tensor of one response cannot be followed, nothing is said."""
    assert rules(tmp_path, code(body, TWO)) == []


def test_responses_that_are_errors(tmp_path: Path) -> None:
    """They need no tensors."""
    error = "failed = pb_utils.InferenceResponse(error=pb_utils.TritonError('no'))"
    assert rules(tmp_path, code(answer(TENSOR.format("OUTPUT"), error), TWO)) == ["TC233"]


# Types of elements.


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        ("np.zeros(4)", None),  # FP64, but numpy's default is not written there
        ("np.zeros(4, dtype=np.float32)", None),
        ("np.zeros(4, np.float64)", "float64"),
        ("np.full((4,), 1, np.int64)", "int64"),
        ("x.astype(np.float32)", None),
        ('x.astype("float64").reshape(2, 2)[0].T', "float64"),
        ("x.astype(float)", "float64"),
        ("x.astype(self.type)", None),
        ("np.array([1, 2])", "int64"),
        ("np.array([1, x])", None),
        ("np.array([1.5, 2])", None),
        ("np.array([[0.5]], dtype=kind)", None),
        ("np.array([0.5], **how)", None),
        ("np.array(x, dtype=object)[0]", None),
        ("np.array(['text'])", "numpy's own strings, which Triton has no type for"),
        ("other.zeros(4, np.float64)", None),
        ("x.astype(np.float64).mean()", None),
        ("made", "float16"),
        ("changed", None),
        ("unknown", None),
    ],
)
def test_element_types(array: str, kind: str | None, tmp_path: Path) -> None:
    """What stands in the code, through names that are given one value."""
    before = (
        "made = np.asarray(x, dtype=np.half)\n"
        "changed = np.asarray(x, dtype=np.half)\n"
        "changed = changed.astype(np.float32)"
    )
    found = findings(tmp_path, code(answer(f'pb_utils.Tensor("OUTPUT", {array})', before)))
    assert [one.rule for one in found] == (["TC234"] if kind else [])
    if kind:
        assert found[0].message == f"OUTPUT is declared TYPE_FP32 and made of an array of {kind}"
        assert found[0].fix == "convert it: .astype(np.float32)"


def test_strings_are_objects(tmp_path: Path) -> None:
    """An array of Python's strings, not of numpy's."""
    config = CONFIG.replace('"OUTPUT" data_type: TYPE_FP32', '"OUTPUT" data_type: TYPE_STRING')
    good = answer('pb_utils.Tensor("OUTPUT", np.array(["a"], dtype=np.object_))')
    assert rules(tmp_path / "good", code(good, config)) == []
    found = only(tmp_path / "bad", code(good.replace(", dtype=np.object_", ""), config))
    assert (found.rule, found.fix) == ("TC234", "convert it: .astype(np.object_)")


TEXT = CONFIG.replace('"INPUT" data_type: TYPE_FP32', '"INPUT" data_type: TYPE_STRING')


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("str(x[0])", ["TC236"]),
        ("str(x[0][0])", ["TC236"]),
        ("str(x.flatten()[0])", ["TC236"]),
        ("str(x.item())", ["TC236"]),
        ('f"{x[0]}: {self.prompt}"', ["TC236"]),
        ("str(first)", ["TC236"]),
        ('str(x[0], "utf-8")', []),
        ("str(x[0].decode())", []),
        ("x[0].decode()", []),
        ('f"{x[0]!r}"', []),
        ("str(x)", []),
        ("str(x.shape[0])", []),
        ("[str(one) for one in x]", []),
        ("str(other[0])", []),
        ("first.decode() if isinstance(first, bytes) else str(first)", []),
    ],
)
def test_bytes_are_no_text(expression: str, expected: list[str], tmp_path: Path) -> None:
    """Of elements, not of what is made of them."""
    body = (
        f'x = {GET}(requests[0], "INPUT").as_numpy()\nfirst = x[0]\n'
        f"other = [one.decode() for one in x]\nself.log({expression})"
    )
    assert rules(tmp_path / "text", code(body, TEXT)) == expected
    assert rules(tmp_path / "numbers", code(body)) == []


@pytest.mark.parametrize(
    "test", ["isinstance(first, bytes)", "type(first) is bytes", 'hasattr(first, "decode")']
)
def test_bytes_that_are_sorted_out_before(test: str, tmp_path: Path) -> None:
    """What comes after a test of the type is of another one."""
    read = f'first = {GET}(requests[0], "INPUT").as_numpy()[0]\n'
    guarded = f"{read}if {test}:\n    return self.answer(first.decode())\nself.log(str(first))"
    assert rules(tmp_path / "guarded", code(guarded, TEXT)) == []
    other = guarded.replace(test, test.replace("first", "other"))
    assert rules(tmp_path / "other", code(other, TEXT)) == ["TC236"]


# Several requests.


@pytest.mark.parametrize(
    ("body", "config", "expected"),
    [
        ("return [self.answer(requests[0])]", BATCHING, ["TC235"]),
        ("x = requests[0]\ny = requests[0]\nreturn [x, y]", BATCHING, ["TC235"]),
        ("return [self.answer(requests[0])]", CONFIG, []),
        ("return [self.answer(requests[0])]", BATCHING.replace(": 8", ": 1"), []),
        ("return [self.answer(requests[0]) for _ in requests]", BATCHING, []),
        ("return self.answer(requests[0], len(requests))", BATCHING, []),
        ("return self.answer(requests)", BATCHING, []),
        (
            "return None if requests[0] else []",
            BATCHING + "model_transaction_policy { decoupled: true }\n",
            [],
        ),
    ],
)
def test_only_the_first(body: str, config: str, expected: list[str], tmp_path: Path) -> None:
    """Only where batches come, and nothing else is done with the requests."""
    assert rules(tmp_path, code(body, config)) == expected
