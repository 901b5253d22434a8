# SPDX-License-Identifier: Apache-2.0
"""Real builds of given graphs and small encoders, in the ONNX Runtime builder's environment."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.runs import Built, run, run_kept
from tests.builders.warm import make_warm
from tests.engine_cache import content, kept

pytestmark = pytest.mark.engine
exhaustive = pytest.mark.exhaustive

TESTS = Path(__file__).resolve().parents[1]
BUILD = TESTS.parent / "builders" / "onnxruntime" / "build.py"
PRECISIONS = ("fp32", "fp16", "int8")
STAGES = ("load", "export", "convert", "evaluate")


Build = Callable[..., Built]
Encoder = Callable[[str], Path]


@pytest.fixture(scope="session")
def build(onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Run build.py as the host does; `fresh`: also where an equal run was kept."""

    def build(
        checkpoint: Path, precision: str = "fp32", *, fresh: bool = False, **changes: Any
    ) -> Built:
        asked = {
            "schema": "tritonctl.build/1",
            "model": "m",
            "checkpoint": str(checkpoint),
            "precision": precision,
            "limits": {"max_batch_size": 8},
            **changes,
        }
        folder = tmp_path_factory.mktemp("build")
        return (run if fresh else run_kept)(onnxruntime_environment, BUILD, asked, folder)

    return build


@pytest.fixture(scope="session")
def graphs(onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small graphs of tests/onnx_graphs.py."""
    script = TESTS / "onnx_graphs.py"

    def write(folder: Path) -> None:
        subprocess.run([onnxruntime_environment, script, folder], check=True)

    inputs = {"script": content(script), "python": onnxruntime_environment.parents[1].name}
    return kept("graphs", inputs, write, tmp_path_factory.mktemp("graphs") / "graphs")


@pytest.fixture(scope="session")
def encoder(onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """A small encoder with random weights."""

    script = TESTS / "tiny_encoder.py"
    inputs = {"script": content(script), "python": onnxruntime_environment.parents[1].name}

    def make(name: str) -> Path:
        def write(folder: Path) -> None:
            make_warm(onnxruntime_environment, script, name, folder)

        into = tmp_path_factory.mktemp(name) / "encoder"
        return kept("encoder", inputs | {"name": name}, write, into)

    return make


def parity(done: Built) -> dict[str, Any]:
    assert done.code == 0, done.result
    figures: dict[str, Any] = done.result["parity"]
    return figures


def engine_bytes(done: Built) -> int:
    return sum(file.stat().st_size for file in (done.staging / "engine").iterdir())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_result_keeps_the_contract(build: Build, graphs: Path, precision: str) -> None:
    done = build(graphs / "mixed", precision)
    assert parity(done)["samples"] == 6
    files = done.result["files"]
    assert [entry["path"] for entry in files] == ["engine/model.onnx"]
    content = (done.staging / "engine" / "model.onnx").read_bytes()
    assert files[0]["size"] == len(content)
    assert files[0]["sha256"] == hashlib.sha256(content).hexdigest()
    assert sorted(path.name for path in done.staging.iterdir()) == ["engine", "tokenizer"]
    assert done.result["model"] is None
    assert list(done.result["durations_seconds"]) == list(STAGES)
    inputs = {tensor["name"]: tensor for tensor in done.result["tensors"]["inputs"]}
    assert inputs["sequence"] == {"name": "sequence", "data_type": "TYPE_FP32", "dims": [-1]}
    assert inputs["name"]["data_type"] == "TYPE_STRING"
    outputs = {tensor["name"]: tensor for tensor in done.result["tensors"]["outputs"]}
    assert outputs["rows"]["dims"] == [2, 3]
    assert done.result["versions"]["onnxruntime"] == "1.31.1"
    assert "torch" not in done.result["versions"]


def test_fp16_at_the_border_when_asked(build: Build, graphs: Path) -> None:
    done = build(graphs / "plain", "fp16", options={"keep_io_types": False})
    parity(done)
    for side in ("inputs", "outputs"):
        assert [tensor["data_type"] for tensor in done.result["tensors"][side]] == ["TYPE_FP16"]


@pytest.mark.exhaustive
def test_texts_of_different_lengths_share_a_run_where_that_is_exact(
    build: Build, encoder: Encoder
) -> None:
    """What the engine needs for it is in the manifest; `padding: false` leaves it out."""
    padding = build(encoder("BertModel")).result["runtime"]["padding"]
    assert padding["inputs"] == {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0}
    assert padding["outputs"] == ["last_hidden_state"]
    assert padding["run_tokens"] >= 0
    without = build(encoder("BertModel"), options={"padding": False})
    assert "padding" not in without.result["runtime"]


REFUSED = {
    "newer_opset": "uses opset 99",
    "unknown_rank": "the number of dimensions of x is unknown",
    "complex_numbers": "of the ONNX type COMPLEX64",
    "fixed_batch": "the first dimension of x is fixed at 1",
    "two_batches": "do not share the batch dimension: x has 'n', y has 'm'",
    "scalars": "threshold is a scalar and has no batch dimension",
    "distances": "do not share the batch dimension: x has 'n', y has 'm'",
    "zipmap": "maps is a sequence; Triton carries tensors only",
    "custom_operator": "the domain 'com.acme' (Polish)",
}
# In the builder's environment: what a build does with a given graph before anything else of it.
CHECK = """
import json, sys
from pathlib import Path
builders, *files = map(Path, sys.argv[1:])
sys.path[:0] = [str(builders / "onnxruntime"), str(builders / "shared")]
from buildlib.problems import BuildError
from onnxlib.graph import check_graph
from onnxlib.reader import describe_graph, read_model
from support import ONNX_RUNTIME

def problem(file):
    try:
        check_graph(describe_graph(read_model(file)), file, ONNX_RUNTIME)
    except BuildError as error:
        return error.problem
    return ""

print("problems:" + json.dumps([problem(file) for file in files]))
"""


def test_graphs_that_are_refused(
    graphs: Path, onnxruntime_environment: Path, tmp_path: Path
) -> None:
    """Each of them, and not the one that can be built."""
    whole = (graphs / "mixed" / "model.onnx").read_bytes()
    (tmp_path / "model.onnx").write_bytes(whole[: len(whole) // 2])
    expected = REFUSED | {"mixed": "", "half": "is not a whole ONNX file"}
    files = [graphs / name / "model.onnx" for name in (*REFUSED, "mixed")]
    done = subprocess.run(
        [onnxruntime_environment, "-c", CHECK, BUILD.parents[1], *files, tmp_path / "model.onnx"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    problems = json.loads(done.stdout.splitlines()[-1].removeprefix("problems:"))
    for words, problem in zip(expected.values(), problems, strict=True):
        assert words in problem
        assert bool(words) == bool(problem)


def test_a_graph_that_sums_over_its_batch(build: Build, graphs: Path) -> None:
    """Only its answers show it: the whole program refuses."""
    done = build(graphs / "summed")
    assert done.code == 1
    assert "its first dimension is not the batch" in done.result["problem"]


def test_a_first_dimension_that_is_no_batch(build: Build, graphs: Path) -> None:
    """A running sum answers as many values as it gets: only a row alone shows it. Built alone."""
    done = build(graphs / "waveform")
    assert done.code == 1
    assert "the output y of a row changes with the other rows" in done.result["problem"]
    alone = build(graphs / "waveform", limits={"max_batch_size": 0})
    assert parity(alone)["samples"] == 3
    assert [tensor["dims"] for tensor in alone.result["tensors"]["inputs"]] == [[-1]]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("graph", "inputs", "outputs"),
    [
        ("fixed_batch", [[1, 3]], [[1, 3]]),
        ("scalars", [[-1, 3], [], []], [[-1, 3], [], [], []]),
        ("distances", [[-1, 3], [-1, 3]], [[-1, -1]]),
    ],
)
def test_graphs_without_a_batch_dimension(
    build: Build, graphs: Path, graph: str, inputs: Any, outputs: Any, precision: str
) -> None:
    """With a max_batch_size of 0, in the graph's own shapes; otherwise refused with that remedy."""
    done = build(graphs / graph, precision, limits={"max_batch_size": 0})
    assert parity(done)["samples"] == 3
    tensors = done.result["tensors"]
    assert [tensor["dims"] for tensor in tensors["inputs"]] == inputs
    assert [tensor["dims"] for tensor in tensors["outputs"]] == outputs
    assert done.result["limits"]["max_batch_size"] == 0
    refused = build(graphs / graph, precision)
    assert "Set engine.max_batch_size to 0" in refused.result["remedy"]


def test_outputs_without_a_shape(build: Build, graphs: Path) -> None:
    """Their rank follows from the operators, as of a label of scikit-learn."""
    done = build(graphs / "open_ranks")
    assert parity(done)["samples"] == 6
    outputs = {tensor["name"]: tensor["dims"] for tensor in done.result["tensors"]["outputs"]}
    assert outputs == {"label": [], "probabilities": [3], "score": []}


def test_a_graph_that_takes_no_random_inputs(build: Build, graphs: Path, tmp_path: Path) -> None:
    """It is said how to give samples, and with them, texts too, it is built."""
    done = build(graphs / "categories")
    assert "does not take the inputs of the comparison" in done.result["problem"]
    assert "set engine.calibration.data to a folder of .npz samples" in done.result["remedy"]
    (tmp_path / "samples").mkdir()
    np.savez(tmp_path / "samples" / "a.npz", x=np.array([["ham"], ["éggs"], ["spam"]]))
    calibration = {"data": str(tmp_path / "samples")}
    assert parity(build(graphs / "categories", calibration=calibration))["samples"] == 3


def test_weights_outside_of_the_graph(build: Build, graphs: Path, tmp_path: Path) -> None:
    source = graphs / "external"
    inside = build(source)
    assert parity(inside)["max_abs_error"] < 1e-4
    outside = build(source, "int8", options={"external_data": True})
    assert parity(outside)["max_abs_error"] > 0
    names = [entry["path"] for entry in outside.result["files"]]
    assert names == ["engine/model.onnx", "engine/model.onnx.data"]
    assert engine_bytes(outside) < engine_bytes(inside)
    alone = build(source / "model.onnx")
    assert "so it is not one file" in alone.result["problem"]
    shutil.copyfile(source / "model.onnx", tmp_path / "model.onnx")
    missing = build(tmp_path)
    assert "model.onnx.data, which is not next to it" in missing.result["problem"]


def test_a_graph_in_a_file_of_any_name(build: Build, graphs: Path, tmp_path: Path) -> None:
    shutil.copyfile(graphs / "plain" / "model.onnx", tmp_path / "classifier.onnx")
    assert parity(build(tmp_path / "classifier.onnx"))["max_abs_error"] == 0


def samples(folder: Path, count: int, size: int = 64) -> dict[str, Any]:
    """The calibration of a request: .npz samples for the graph `external`."""
    random = np.random.default_rng(1)
    for number in range(count):
        array = random.standard_normal((1, size)).astype(np.float32)
        np.savez(folder / f"{number:03}.npz", x=array)
    limits = {"samples": 512, "max_seq_len": 512, "batch_size": 1, "seed": 1}
    return {"data": str(folder), **limits}


@pytest.mark.parametrize(
    "method",
    [
        "minmax",
        pytest.param("entropy", marks=exhaustive),
        pytest.param("percentile", marks=exhaustive),
    ],
)
def test_static_calibration_on_samples(
    build: Build, graphs: Path, tmp_path: Path, method: str
) -> None:
    options = {"calibration": "static", "calibration_method": method}
    calibration = samples(tmp_path, 24)
    done = build(graphs / "external", "int8", options=options, calibration=calibration)
    figures = parity(done)
    assert figures["samples"] == 24
    assert figures["max_abs_error"] > 0
    assert b"DequantizeLinear" in (done.staging / "engine" / "model.onnx").read_bytes()


def test_calibration_that_does_not_fit(build: Build, graphs: Path, tmp_path: Path) -> None:
    options = {"calibration": "static"}
    empty = samples(tmp_path, 0)
    done = build(graphs / "external", "int8", options=options, calibration=empty)
    assert "holds no .npz samples" in done.result["problem"]
    wrong = samples(tmp_path, 1, size=63)
    done = build(graphs / "external", "int8", options=options, calibration=wrong)
    assert (
        "has float32[1, 63] for the input x, which takes FLOAT['batch', 64]"
        in (done.result["problem"])
    )
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    texts = wrong | {"data": str(tmp_path / "texts.txt")}
    done = build(graphs / "external", "int8", options=options, calibration=texts)
    assert "the graph takes x, and texts become input_ids" in done.result["problem"]


def test_a_difference_above_the_tolerance_fails_the_build(build: Build, graphs: Path) -> None:
    done = build(graphs / "external", "int8", options={"max_abs_error": 0.000001})
    assert done.code == 1
    assert "the int8 engine's outputs differ by up to" in done.result["problem"]
    assert "allowed are 1e-06" in done.result["problem"]


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        pytest.param("BertModel", 3, ["last_hidden_state", "pooler_output"], marks=exhaustive),
        ("BertForSequenceClassification", 3, ["logits"]),
        pytest.param("DistilBertForSequenceClassification", 2, ["logits"], marks=exhaustive),
        pytest.param("RobertaModel", 2, ["last_hidden_state", "pooler_output"], marks=exhaustive),
        ("ModernBertModel", 2, ["last_hidden_state"]),
        pytest.param("ModernBertForSequenceClassification", 2, ["logits"], marks=exhaustive),
    ],
)
def test_encoders_answer_as_transformers_does(
    build: Build, encoder: Encoder, name: str, inputs: int, outputs: list[str]
) -> None:
    done = build(encoder(name), "fp32")
    figures = parity(done)
    assert figures["max_abs_error"] < 1e-4
    assert figures["prediction_match"] == 1
    tensors = done.result["tensors"]
    assert [tensor["name"] for tensor in tensors["outputs"]] == outputs
    assert [tensor["dims"] for tensor in tensors["inputs"]] == [[-1]] * inputs
    assert done.result["limits"]["max_seq_len"] == (64 if "Roberta" in name else 66)
    if "Classification" in name:
        assert done.result["runtime"]["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_a_classifier_in_int8(build: Build, encoder: Encoder) -> None:
    """Its last layer is a Gemm and no square: ONNX Runtime transposes the weight."""
    done = build(encoder("BertForSequenceClassification"), "int8", options={"max_abs_error": 10})
    assert parity(done)["max_abs_error"] > 0
    (output,) = done.result["tensors"]["outputs"]
    assert (output["name"], output["dims"]) == ("logits", [3])


def test_one_vector_per_text_and_two_equal_builds(build: Build, encoder: Encoder) -> None:
    checkpoint = encoder("BertModel")
    options = {"pooling": "mean", "normalize": True}
    first = build(checkpoint, "int8", options=options)
    second = build(checkpoint, "int8", options=options, fresh=True)
    parity(first)
    (output,) = first.result["tensors"]["outputs"]
    assert (output["name"], output["dims"]) == ("sentence_embedding", [32])
    assert first.result["files"] == second.result["files"]


def test_weights_that_lack_a_tensor(build: Build, encoder: Encoder) -> None:
    checkpoint = encoder("BertModel")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] += 1
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    done = build(checkpoint)
    assert done.code == 1
    assert "the weights lack" in done.result["problem"]
    assert "encoder.layer.2." in done.result["problem"]


def test_a_real_encoder_calibrated_on_texts(build: Build, minilm: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    lines = ["How do I reset my password?", "I cannot log in.", "The capital of France is Paris."]
    lines += [
        "Berlin is a large city.",
        "Green apples are sour.",
        "She bought fruit at the market.",
    ]
    texts.write_text("\n".join(lines), encoding="utf-8")
    limits = {"samples": 512, "max_seq_len": 64, "batch_size": 1, "seed": 1}
    calibration = {"data": str(texts), **limits}
    done = build(minilm, "int8", options={"calibration": "static"}, calibration=calibration)
    figures = parity(done)
    assert figures["samples"] == len(lines)
    assert figures["prediction_match"] >= 0.5
    assert engine_bytes(done) < 30_000_000
    names = {entry["path"] for entry in done.result["files"]}
    assert {"tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"} <= names


_PICKLE = """
import pathlib, sys, torch
from safetensors.torch import load_file
weights = pathlib.Path(sys.argv[1])
torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
weights.unlink()
"""


@exhaustive
def test_an_encoder_s_weights_that_are_a_pickle(
    build: Build, encoder: Encoder, onnxruntime_environment: Path
) -> None:
    """Refused, and the same graph where the user allows them."""
    folder = encoder("BertModel")
    plain = build(folder)
    subprocess.run(
        [onnxruntime_environment, "-c", _PICKLE, folder / "model.safetensors"], check=True
    )
    refused = build(folder)
    assert refused.code != 0
    assert "engine.allow_pickle" in json.dumps(refused.result)
    allowed = build(folder, allow_pickle=True)
    assert parity(allowed)["samples"] == parity(plain)["samples"]
    graphs = [(done.staging / "engine" / "model.onnx").read_bytes() for done in (plain, allowed)]
    assert graphs[0] == graphs[1]
