# SPDX-License-Identifier: Apache-2.0
"""Tensors declared against those of a model file: what is reported, where, and what is not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.check_models.onnx_models import ONNX_CONFIG, onnx_changed, onnx_model
from tests.unit.checks.repositories import put
from tests.unit.checks.test_openvino_ir import IR, LAYOUT
from tritonctl.checks.autofix import apply_fixes
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example, ExampleFile
from tritonctl.checks.examples.onnx import BFLOAT16, FLOAT, INT64, STRING, Values, X, Y, onnx_file
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.repository import CheckTarget

TARGET = CheckTarget("2.51.0")
CONTROL = """\
sequence_batching {
  control_input [
    { name: "z" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] }
  ]
}
"""
STATE = """\
sequence_batching {
  state [ { input_name: "z" output_name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
}
"""
BATCH_INPUT = """\
batch_input [
  {
    kind: BATCH_ITEM_SHAPE
    target_name: [ "z" ]
    data_type: TYPE_FP32
    source_input: [ "x" ]
  }
]
"""


def findings(folder: Path, files: Example) -> list[CheckFinding]:
    found = check_repository(put(folder, files), TARGET).findings
    return [finding for finding in found if finding.rule.startswith("TC2")]


def rules(folder: Path, files: Example) -> list[str]:
    return [finding.rule for finding in findings(folder, files)]


def only(folder: Path, files: Example) -> CheckFinding:
    [finding] = findings(folder, files)
    return finding


def underlined(finding: CheckFinding) -> str:
    return finding.text[finding.column - 1 : finding.end - 1]


def config(inputs: str, outputs: str, batch: int = 8, more: str = "") -> str:
    return (
        f'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: {batch}\n'
        f"input [ {inputs} ]\noutput [ {outputs} ]\n{more}"
    )


def tensor(name: str, dims: str, kind: str = "FP32", more: str = "") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {more} }}'


# The batch dimension.


def test_the_batch_dimension_twice(tmp_path: Path) -> None:
    """Both shapes are named. Nothing is edited: max_batch_size may be the mistake."""
    image = onnx_file({"x": (FLOAT, ["n", 3, 224])}, {"y": (FLOAT, ["n", 10])})
    text = config(tensor("x", "-1, 3, 224"), tensor("y", "8,10"))
    found = findings(tmp_path, onnx_model(image, text))
    assert [(one.rule, one.line, one.column) for one in found] == [
        ("TC211", 4, 50),
        ("TC211", 5, 51),
    ]
    assert found[0].message == (
        "dims of x repeat the batch dimension: max_batch_size already puts one in front, which "
        "makes [-1, -1, 3, 224], and x is [n, 3, 224] in the graph"
    )
    assert found[0].fix == "remove the first one: dims: [ 3, 224 ]"
    assert apply_fixes(check_repository(tmp_path, TARGET)) == 0


def test_the_batch_dimension_left_out(tmp_path: Path) -> None:
    """One mistake, however many tensors it makes wrong."""
    found = only(tmp_path, onnx_changed("max_batch_size: 8\n", ""))
    assert (found.rule, found.line, underlined(found)) == ("TC212", 3, "3")
    assert found.message == (
        "without max_batch_size, dims are full shapes: x, y omit the first dimension, the "
        "batch; x is [batch, 3] in the graph"
    )
    assert found.fix == "set max_batch_size, e.g. 8, or write dims: [ -1, 3 ]"


def test_a_graph_without_room_for_a_batch(tmp_path: Path) -> None:
    """One finding, at max_batch_size, and none about dims that follow from it."""
    fixed = onnx_file({"x": (FLOAT, [1, 3])}, {"y": (FLOAT, [1, 3])})
    for number, dims in enumerate(("3", "1, 3")):
        text = config(tensor("x", dims), tensor("y", dims))
        found = only(tmp_path / str(number), onnx_model(fixed, text))
        assert (found.rule, found.line, underlined(found)) == ("TC210", 3, "8")
        assert "x, y have none in model.onnx: x is [1, 3]" in found.message
    whole = config(tensor("x", "1, 3"), tensor("y", "1, 3"), batch=0)
    assert rules(tmp_path / "whole", onnx_model(fixed, whole)) == []


# Shapes, types and names.


@pytest.mark.parametrize(
    ("dims", "shape", "batch", "expected"),
    [
        ("3", ["n", 3], 8, []),
        ("-1", ["n", "length"], 8, []),
        ("7", ["n", "length"], 8, []),  # narrower than the graph: allowed for inputs
        ("-1", ["n", 3], 8, ["TC213"]),  # wider: the backend compares fixed sizes
        ("4", ["n", 3], 8, ["TC213"]),
        ("3, 4", ["n", 3], 8, ["TC213"]),
        ("3, 3, 3", ["n", 3], 8, ["TC213"]),
        ("1", ["n"], 8, ["TC213"]),
        ("-1", ["n"], 8, ["TC211"]),
        ('1 ] reshape: { shape: [ ] } label_filename: ""', ["n"], 8, None),
        ("n", ["n", 3], 8, None),
        ("-1, 3", ["n", 3], 0, []),
        ("5, 3", ["n", 3], 0, []),
        ("5, 4", ["n", 3], 0, ["TC213"]),
        ("4", ["n", 3], 0, ["TC213"]),
        ("3", ["n", 3], 0, ["TC212"]),
        ("1, 1", [], 0, []),
        ("1", [], 8, []),
        ("2", [], 8, ["TC214"]),
    ],
)
def test_shapes_of_inputs(
    dims: str, shape: list[int | str], batch: int, expected: list[str] | None, tmp_path: Path
) -> None:
    """As the ONNX Runtime backend compares them. None: the configuration itself is broken."""
    graph = onnx_file({"x": (FLOAT, shape)}, {"y": (FLOAT, ["n", 3])})
    text = config(tensor("x", dims), tensor("y", "3" if batch else "-1, 3"), batch)
    assert rules(tmp_path, onnx_model(graph, text)) == (expected or [])


def test_a_reshape_counts_instead_of_dims(tmp_path: Path) -> None:
    """Both ways: wrong dims with the right reshape, right dims with a wrong one."""
    graph = onnx_file({"x": (FLOAT, ["n"])}, {"y": (FLOAT, ["n", 2, 2])})
    good = config(
        tensor("x", "1", more="reshape: { shape: [ ] }"),
        tensor("y", "4", more="reshape: { shape: [ 2, 2 ] }"),
    )
    assert rules(tmp_path / "good", onnx_model(graph, good)) == []
    bad = good.replace("[ 2, 2 ]", "[ 2, 3 ]")
    found = only(tmp_path / "bad", onnx_model(graph, bad))
    assert (found.rule, underlined(found)) == ("TC213", "3")
    assert found.message == (
        "y is [-1, 2, 3], the batch in front, by the configuration and [n, 2, 2] in model.onnx"
    )


def test_a_fixed_size_for_an_open_output(tmp_path: Path) -> None:
    """A warning: ONNX Runtime may still work that size out."""
    graph = onnx_file(outputs={"y": (FLOAT, ["n", "classes"])})
    found = only(tmp_path, onnx_model(graph))
    assert (found.rule, found.severity, found.line) == ("TC215", "warning", 5)
    assert "fix a size, 3, that model.onnx leaves open: [n, classes]" in found.message


def test_types(tmp_path: Path) -> None:
    """Strings are TYPE_STRING. Nothing is edited: clients may send the declared type."""
    graph = onnx_file({"x": (INT64, ["n", 3])}, {"y": (STRING, ["n", 3])})
    found = findings(tmp_path, onnx_model(graph))
    assert [(one.rule, underlined(one)) for one in found] == [("TC208", "TYPE_FP32")] * 2
    assert found[0].message == "x is declared TYPE_FP32 and is TYPE_INT64 in model.onnx"
    assert apply_fixes(check_repository(tmp_path, TARGET)) == 0


def test_types_that_triton_has_not(tmp_path: Path) -> None:
    """Needed or declared; an output that nobody declares may be of any."""
    outputs: Values = {**Y, "z": (BFLOAT16, ["n", 3])}
    assert rules(tmp_path / "free", onnx_model(onnx_file(outputs=outputs))) == []
    text = config(tensor("x", "3"), tensor("z", "3", "BF16"))
    both = findings(tmp_path / "declared", onnx_model(onnx_file(outputs=outputs), text))
    assert [(one.rule, underlined(one)) for one in both] == [("TC205", "TYPE_BF16")]


def test_names(tmp_path: Path) -> None:
    """A misspelt one is one mistake, although its right name is then not declared."""
    found = only(tmp_path, onnx_changed('name: "x"', 'name: "X"'))
    assert (found.rule, found.line, underlined(found)) == ("TC206", 4, '"X"')
    assert found.message == "model.onnx has no input X; it has x"
    assert found.fix == "did you mean x?"


def test_an_input_too_few(tmp_path: Path) -> None:
    """With what to write for it."""
    graph = onnx_file({**X, "mask": (INT64, ["n", "length", 2])})
    found = only(tmp_path, onnx_model(graph))
    assert (found.rule, found.line) == ("TC207", 4)
    assert found.message == "model.onnx needs the input mask, which is not declared"
    assert 'input [ { name: "mask" data_type: TYPE_INT64 dims: [ -1, 2 ] } ]' in found.fix


@pytest.mark.parametrize(
    "more",
    [
        CONTROL,
        STATE,
        BATCH_INPUT,
    ],
)
def test_inputs_that_triton_fills(more: str, tmp_path: Path) -> None:
    """Controls, states and batches need no `input`."""
    graph = onnx_file({**X, "z": (FLOAT, ["n", 3])})
    assert "TC207" not in rules(tmp_path, onnx_model(graph, ONNX_CONFIG + more))


def test_what_triton_completes_is_not_judged(tmp_path: Path) -> None:
    """A list that is left out is filled from the graph; one that is there is compared."""
    text = 'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
    assert rules(tmp_path / "none", onnx_model(config=text)) == []
    half = text + f"input [ {tensor('other', '9')} ]\n"
    assert rules(tmp_path / "half", onnx_model(config=half)) == ["TC206"]
    half = text + f"output [ {tensor('y', '3')} ]\n"
    assert rules(tmp_path / "outputs", onnx_model(config=half)) == []


def test_a_batch_that_the_backend_adds(tmp_path: Path) -> None:
    """Without max_batch_size and a list, dims mean what the backend makes of them; else, what
    they say."""
    text = 'name: "m"\nbackend: "onnxruntime"\n'
    half = text + f"input [ {tensor('x', '9')} ]\n"
    assert rules(tmp_path / "open", onnx_model(config=half)) == []
    fixed = onnx_file(outputs={"y": (FLOAT, [1, 3])})
    assert rules(tmp_path / "fixed", onnx_model(fixed, half)) == ["TC213"]


@pytest.mark.parametrize(("shape", "expected"), [([], ["TC210"]), ([1, 3], ["TC210"]), (["n"], [])])
def test_completed_for_batches(shape: list[int | str], expected: list[str], tmp_path: Path) -> None:
    """Then the backend wants a batch dimension of every tensor, declared or not."""
    text = 'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
    graph = onnx_file(outputs={**Y, "loss": (FLOAT, shape)})
    assert rules(tmp_path / "batch", onnx_model(graph, text)) == expected
    assert rules(tmp_path / "none", onnx_model(graph, text.replace("8", "0"))) == []


def test_optional_inputs(tmp_path: Path) -> None:
    """Just those with a value in the graph, and only without batching."""
    graph = onnx_file({**X, "z": (FLOAT, ["n", 3])}, defaults=["z"])
    optional = tensor("z", "-1, 3", more="optional: true")
    whole = config(f"{tensor('x', '-1, 3')}, {optional}", tensor("y", "-1, 3"), batch=0)
    assert rules(tmp_path / "good", onnx_model(graph, whole)) == []
    needed = whole.replace("optional: true", "")
    assert rules(tmp_path / "needed", onnx_model(graph, needed)) == ["TC216"]
    batched = config(
        f"{tensor('x', '3')}, {tensor('z', '3', more='optional: true')}", tensor("y", "3")
    )
    found = only(tmp_path / "batched", onnx_model(graph, batched))
    assert (found.rule, underlined(found)) == ("TC216", "optional")


def test_the_version_that_is_served(tmp_path: Path) -> None:
    """The latest, or the latest of those that version_policy names."""
    other = {"m/2/model.onnx": ExampleFile(onnx_file({"other": (FLOAT, ["n", 3])}))}
    assert rules(tmp_path / "latest", {**onnx_model(), **other}) == ["TC206"]
    text = ONNX_CONFIG + "version_policy { specific { versions: [ 1 ] } }\n"
    assert rules(tmp_path / "named", {**onnx_model(config=text), **other}) == []


def test_a_folder_with_the_graph_in_it(tmp_path: Path) -> None:
    """model.onnx may be a folder; weights are looked for in there."""
    graph = onnx_file(external={"w.bin": 4})
    files: dict[str, str | ExampleFile] = {
        "m/config.pbtxt": ONNX_CONFIG,
        "m/1/model.onnx/model.onnx": ExampleFile(graph),
    }
    found = only(tmp_path / "a", files)
    assert (found.rule, found.path) == ("TC203", str(tmp_path / "a/m/1/model.onnx/model.onnx"))
    assert rules(tmp_path / "b", files | {"m/1/model.onnx/w.bin": ExampleFile(bytes(4))}) == []


# Files.


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ({}, "which does not exist"),
        ({"w.bin": ExampleFile(bytes(9))}, "which has 9 bytes instead of at least 10"),
    ],
)
def test_weights(weights: Mapping[str, ExampleFile], problem: str, tmp_path: Path) -> None:
    """Missing, or cut off."""
    files = {f"m/1/{name}": file for name, file in weights.items()}
    graph = onnx_file(external={"w.bin": 10})
    found = only(tmp_path, {**onnx_model(graph), **files})
    assert (found.rule, found.path, found.line) == ("TC203", str(tmp_path / "m/1/model.onnx"), 1)
    assert problem in found.message


@pytest.mark.parametrize("location", ["/data/w.bin", "../w.bin", "a\0b", "*/_ORT_MEM_ADDR_/*"])
def test_weights_elsewhere(location: str, tmp_path: Path) -> None:
    """What lies there on the machine that serves is unknown."""
    assert rules(tmp_path, onnx_model(onnx_file(external={location: 4}))) == []


def test_a_pointer_is_told_once(tmp_path: Path) -> None:
    """TC016 reports those in the version folder, so they are no broken graph and no weights."""
    pointer = ExampleFile(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    graph = onnx_model(onnx_file(external={"w.bin": 10}))
    assert rules(tmp_path / "graph", {**graph, "m/1/model.onnx": pointer}) == []
    assert rules(tmp_path / "weights", {**graph, "m/1/w.bin": pointer}) == []
    deeper = onnx_model(onnx_file(external={"data/w.bin": 10}))
    found = only(tmp_path / "deeper", {**deeper, "m/1/data/w.bin": pointer})
    assert found.message.endswith("in 'data/w.bin', which is a Git LFS pointer")


@pytest.mark.parametrize("content", [b"", b"\xff" * 99, onnx_file()[:40]])
def test_junk(content: bytes, tmp_path: Path) -> None:
    """One finding; nothing is said of tensors that cannot be read."""
    assert rules(tmp_path, onnx_model(content)) == ["TC201"]


def test_what_is_no_file(tmp_path: Path) -> None:
    """A pipe would stop us; an empty folder has no graph."""
    put(tmp_path, {"m/config.pbtxt": ONNX_CONFIG, "m/1/model.onnx/other": ""})
    put(tmp_path, {"n/config.pbtxt": ONNX_CONFIG.replace('"m"', '"n"'), "n/1/x": ""})
    os.mkfifo(tmp_path / "n" / "1" / "model.onnx")
    assert rules(tmp_path, {}) == []


# Other backends.


def ir(text: str, xml: str = IR, weights: int = 20) -> Example:
    openvino = text.replace("onnxruntime", "openvino")
    more = {"m/1/model.bin": ExampleFile(bytes(weights))}
    return {"m/config.pbtxt": openvino, "m/1/model.xml": ExampleFile(xml.encode()), **more}


def test_openvino(tmp_path: Path) -> None:
    """Names and shapes; types are converted, and a fixed batch is reshaped."""
    good = config(tensor("x", "3, 5", "INT64"), tensor("logits", "3"))
    assert rules(tmp_path / "good", ir(good)) == []
    other_names = config(tensor("Parameter_1", "-1, -1"), tensor("Add_2", "3"))
    assert rules(tmp_path / "names", ir(other_names)) == []
    bad = config(tensor("x", "4, 5"), tensor("output", "3"))
    assert rules(tmp_path / "bad", ir(bad)) == ["TC213", "TC206"]
    twice = config(tensor("x", "-1, 3, 5"), tensor("logits", "3"))
    assert rules(tmp_path / "twice", ir(twice)) == ["TC211"]
    reshaped = twice + 'parameters { key: "RESHAPE_IO_LAYERS" value { string_value: "YES" } }'
    assert rules(tmp_path / "reshaped", ir(reshaped)) == []
    fixed = IR.replace('shape="?,3', 'shape="1,3')
    assert rules(tmp_path / "fixed", ir(good, fixed)) == []
    found = only(tmp_path / "weights", ir(good, weights=19))
    assert (found.rule, "at least 20" in found.message) == ("TC203", True)
    assert rules(tmp_path / "junk", ir(good, "<net>")) == ["TC201"]


def test_openvino_without_a_batch(tmp_path: Path) -> None:
    """Whole shapes count, unless layouts may make the first dimension a batch."""
    xml = IR.replace('shape="?,3,1..8"', 'shape="1,3,5"').replace("<dim>-1</dim>", "<dim>1</dim>")
    whole = config(tensor("x", "1, 3, 5"), tensor("logits", "1, 3"), batch=0)
    assert rules(tmp_path / "good", ir(whole, xml)) == []
    wrong = whole.replace("1, 3, 5", "1, 3, 6")
    assert rules(tmp_path / "input", ir(wrong, xml)) == ["TC213"]
    output = whole.replace("[ 1, 3 ]", "[ 1, 9 ]")
    assert rules(tmp_path / "output", ir(output, xml)) == ["TC213"]
    laid_out = xml.replace("<dim>1</dim>", f"<dim>1</dim>{LAYOUT}", 1)
    for text in (wrong, whole.replace("1, 3, 5", "3, 5").replace("1, 3 ]", "3 ]")):
        assert rules(tmp_path / str(len(text)), ir(text, laid_out)) == []


PYTORCH = """\
name: "m"
backend: "pytorch"
max_batch_size: 8
input [ {inputs} ]
output [ {{ name: "OUT__0" data_type: TYPE_FP32 dims: [ 2 ] }} ]
"""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("IN__0", "IN__1"), []),
        (("A__1", "B__0"), []),
        (("IN__0", "IN__0x"), []),  # then their order counts
        (("ids", "mask__7"), []),
        (("A__0", "B__0"), ["TC218"]),
        (("IN__1", "IN__2"), ["TC218"]),
    ],
)
def test_pytorch_positions(names: tuple[str, ...], expected: list[str], tmp_path: Path) -> None:
    """All names have an index, or none counts."""
    text = PYTORCH.format(inputs=", ".join(tensor(name, "4") for name in names))
    assert rules(tmp_path, {"m/config.pbtxt": text, "m/1/model.pt": ""}) == expected
    with_code = {"m/config.pbtxt": text, "m/1/model.pt": "", "m/1/model.py": ""}
    assert rules(tmp_path, with_code) == []


def test_types_of_other_libraries(tmp_path: Path) -> None:
    """By the table in Triton's documentation."""
    text = PYTORCH.format(inputs=tensor("IN__0", "4", "UINT64"))
    found = only(tmp_path / "a", {"m/config.pbtxt": text, "m/1/model.pt": ""})
    assert (found.rule, underlined(found)) == ("TC209", "TYPE_UINT64")
    plan = {"m/config.pbtxt": text.replace("pytorch", "tensorrt"), "m/1/model.plan": ""}
    assert rules(tmp_path / "b", plan) == ["TC209"]
    code = {"m/config.pbtxt": text.replace("pytorch", "python"), "m/1/model.py": ""}
    assert "TC209" not in rules(tmp_path / "c", code)
