# SPDX-License-Identifier: Apache-2.0
"""What the ONNX Runtime builder refuses before any library is imported, and how it says so."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders.conftest import ENCODER_CONFIG, Refusal, modules_of, write_json

NAMES = ("onnxlib.graph", "options", "precisions", "source", "support")


@pytest.fixture(scope="module")
def builder() -> Iterator[SimpleNamespace]:
    """The ONNX Runtime builder's modules, and buildlib's."""
    with modules_of("onnxruntime", NAMES) as modules:
        modules.graph = vars(modules)["onnxlib.graph"]
        yield modules


def changed(folder: Path, **changes: Any) -> None:
    write_json(folder / "config.json", ENCODER_CONFIG | changes)


# What is built.


def test_an_encoder(builder: SimpleNamespace, encoder: Path) -> None:
    source = builder.source.inspect_source(encoder)
    assert source.inputs == ("input_ids", "attention_mask", "token_type_ids")
    assert (source.max_seq_len, source.is_classifier) == (64, False)
    assert builder.source.resolve_max_seq_len(None, source) == 64
    assert builder.source.resolve_max_seq_len(16, source) == 16


def test_positions_behind_the_padding_id(builder: SimpleNamespace, encoder: Path) -> None:
    changed(encoder, architectures=["RobertaModel"], pad_token_id=1, type_vocab_size=1)
    source = builder.source.inspect_source(encoder)
    assert (source.max_seq_len, source.inputs) == (62, ("input_ids", "attention_mask"))


def test_labels_of_a_classifier(builder: SimpleNamespace, encoder: Path) -> None:
    labels = {str(n): f"label {n}" for n in range(11)}
    changed(encoder, architectures=["BertForSequenceClassification"], id2label=labels)
    source = builder.source.inspect_source(encoder)
    assert source.is_classifier
    assert source.labels == tuple(f"label {n}" for n in range(11))


def test_weights_win_over_a_graph_beside_them(builder: SimpleNamespace, encoder: Path) -> None:
    (encoder / "model.onnx").write_bytes(b"an older export")
    assert isinstance(builder.source.inspect_source(encoder), builder.source.HuggingFaceEncoder)


def test_a_given_graph(builder: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"graph")
    assert builder.source.inspect_source(tmp_path).folder == tmp_path
    assert builder.source.inspect_source(file).folder is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["BertForQuestionAnswering"]}, "does not export BertForQuestionAnswer"),
        ({"architectures": ["BertModle"]}, "did you mean BertModel"),
        ({"architectures": []}, "names no architectures"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is missing"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "already (bitsandbytes)"),
    ],
)
def test_config_that_cannot_be_built(
    builder: SimpleNamespace, encoder: Path, refusal: Refusal, change: dict[str, Any], words: str
) -> None:
    changed(encoder, **change)
    assert words in refusal(lambda: builder.source.inspect_source(encoder))


def test_pickled_weights(builder: SimpleNamespace, encoder: Path, refusal: Refusal) -> None:
    (encoder / "model.safetensors").rename(encoder / "pytorch_model.bin")
    said = refusal(lambda: builder.source.inspect_source(encoder))
    assert "Python pickles only (pytorch_model.bin)" in said
    allowed = builder.source.inspect_source(encoder, allow_pickle=True)
    assert isinstance(allowed, builder.source.HuggingFaceEncoder)


def test_truncated_safetensors(builder: SimpleNamespace, encoder: Path, refusal: Refusal) -> None:
    file = encoder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    assert "is half-downloaded" in refusal(lambda: builder.source.inspect_source(encoder))


def test_a_pointer_instead_of_a_graph(
    builder: SimpleNamespace, tmp_path: Path, refusal: Refusal
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid 1\n")
    assert "git-lfs pointer" in refusal(lambda: builder.source.inspect_source(tmp_path))


def test_a_file_that_is_no_graph(
    builder: SimpleNamespace, tmp_path: Path, refusal: Refusal
) -> None:
    (tmp_path / "model.pt").write_bytes(b"")
    said = refusal(lambda: builder.source.inspect_source(tmp_path / "model.pt"))
    assert "not an ONNX model" in said
    said = refusal(lambda: builder.source.inspect_source(tmp_path / "absent"))
    assert "does not exist" in said


def test_longer_than_it_was_trained_for(
    builder: SimpleNamespace, encoder: Path, refusal: Refusal
) -> None:
    source = builder.source.inspect_source(encoder)
    said = refusal(lambda: builder.source.resolve_max_seq_len(65, source))
    assert "trained for 64 tokens" in said


def test_one_file_with_weights_beside_it(
    builder: SimpleNamespace, tmp_path: Path, refusal: Refusal
) -> None:
    source = builder.source.OnnxFile(tmp_path / "model.onnx", None)
    said = refusal(lambda: builder.source.refuse_external_files(source, ["model.onnx.data"]))
    assert "keeps its weights in model.onnx.data, so it is not one file" in said


# What is asked for.


def request(builder: SimpleNamespace, precision: str = "int8", **changes: Any) -> Any:
    limits = builder.request_types.RequestedLimits(max_batch_size=8)
    asked = builder.request_types.BuilderRequest("m", Path("x"), precision, limits)
    return replace(asked, **changes)


@pytest.mark.parametrize(
    ("precision", "options", "words"),
    [
        ("int4", {}, "has no precision 'int4'"),
        ("int8", {"calibrations": "static"}, "unknown key 'calibrations' (did you mean calibratio"),
        ("int8", {"calibration": "sttic"}, "'sttic' (did you mean static?)"),
        ("int8", {"calibration": "static"}, "the project has no calibration data"),
        ("int8", {"per_channel": "yes"}, "engine.options.per_channel is 'yes'"),
        ("int8", {"opset_version": True}, "engine.options.opset_version is True"),
        ("int8", {"max_abs_error": "small"}, "engine.options.max_abs_error is 'small'"),
        ("int8", {"keep_io_types": False}, "sets keep_io_types, which only fp16 has"),
        ("fp32", {"reduce_range": True}, "sets reduce_range, which only int8 has"),
        ("fp32", {"normalize": True}, "needs one vector per text"),
        ("fp32", {"pooling": "median"}, "engine.options.pooling is 'median'"),
        ("fp32", {"graph_optimization_level": "all"}, "graph_optimization_level is 'all'"),
    ],
)
def test_options_that_are_refused(
    builder: SimpleNamespace, refusal: Refusal, precision: str, options: dict[str, Any], words: str
) -> None:
    asked = request(builder, precision, options=options)
    assert words in refusal(lambda: builder.options.read_options(asked))


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        (None, {"bounds": {"cosine": 0.9}}, "sets bounds, which the task tensors does not have"),
        ("embedding", {"max_abs_error": 1}, "sets max_abs_error, which the task embedding does"),
        ("embedding", {"bounds": {"cosin": 0.9}}, "the unknown measure 'cosin' (did you mean cos"),
        ("embedding", {"bounds": {"tokens": 0.9}}, "the unknown measure 'tokens'"),
        ("rerank", {"bounds": {"score": "small"}}, "engine.options.bounds.score is 'small'"),
        ("rerank", {"bounds": 0.1}, "engine.options.bounds is 0.1"),
    ],
)
def test_options_of_tasks(
    builder: SimpleNamespace,
    refusal: Refusal,
    task: str | None,
    options: dict[str, Any],
    words: str,
) -> None:
    """Each kind of engine has its own measure of how far it may be from its source."""
    asked = request(builder, options=options, task=task)
    assert words in refusal(lambda: builder.options.read_options(asked))


def test_a_graph_is_no_task(builder: SimpleNamespace, tmp_path: Path, refusal: Refusal) -> None:
    """Of a file, and of a folder with a graph alone."""
    (tmp_path / "model.onnx").write_bytes(b"graph")
    inspect = partial(builder.source.inspect_source, task="embedding")
    for checkpoint in (tmp_path, tmp_path / "model.onnx"):
        said = refusal(partial(inspect, checkpoint))
        assert "the task embedding needs a Hugging Face folder" in said


def test_a_kv_cache_and_several_gpus(builder: SimpleNamespace, refusal: Refusal) -> None:
    asked = request(builder, kv_cache_dtype="int8")
    assert "has no KV cache" in refusal(lambda: builder.options.read_options(asked))
    asked = request(
        builder, limits=builder.request_types.RequestedLimits(max_batch_size=1, tp_size=2)
    )
    assert "engine.tp_size is 2" in refusal(lambda: builder.options.read_options(asked))


def test_static_calibration_on_the_evaluation_s_prompts(builder: SimpleNamespace) -> None:
    evaluation = builder.request_types.RequestedEvaluation(Path("prompts.jsonl"), 1)
    asked = request(builder, options={"calibration": "static"}, evaluation=evaluation)
    assert builder.options.read_options(asked).calibration == "static"


@pytest.mark.parametrize(
    ("precision", "static", "error", "passes"),
    [
        ("fp32", False, 0.0009, True),
        ("fp32", False, 0.0011, False),
        ("fp16", False, 0.09, True),
        ("fp16", False, 0.11, False),
        ("int8", False, 1.9, True),
        ("int8", False, 2.1, False),
        ("int8", True, 3.9, True),
        ("int8", True, 4.1, False),
        ("int8", True, float("nan"), False),
    ],
)
def test_too_far_from_the_source(
    builder: SimpleNamespace,
    refusal: Refusal,
    precision: str,
    static: bool,
    error: float,
    passes: bool,
) -> None:
    options = builder.options.OnnxRuntimeOptions(calibration="static" if static else "dynamic")

    def check() -> None:
        builder.precisions.check_error(precision, options, error=error, peak=10.0)

    if passes:
        check()
    else:
        assert f"the {precision} engine's outputs differ by up to" in refusal(check)


def test_a_tolerance_of_one_s_own(builder: SimpleNamespace, refusal: Refusal) -> None:
    options = builder.options.OnnxRuntimeOptions(max_abs_error=0.5)
    builder.precisions.check_error("fp32", options, error=0.5, peak=1.0)
    said = refusal(lambda: builder.precisions.check_error("fp32", options, error=0.6, peak=1000.0))
    assert "allowed are 0.5" in said


# What a graph may look like. Real files are read in test_onnxruntime_build.py.


def graph(builder: SimpleNamespace, **changes: Any) -> Any:
    make = builder.graph.OnnxTensor
    whole = builder.graph.OnnxGraph(
        ir_version=10,
        opsets={"": 20},
        inputs=(make("x", "FLOAT", ("batch", 3)), make("n", "INT64", ("batch", "length"))),
        outputs=(make("y", "FLOAT16", (None, 2, None)),),
        operators={"": frozenset({"MatMul"}), "com.microsoft": frozenset({"BiasGelu"})},
    )
    return replace(whole, **changes)


def test_tensors_without_the_batch_dimension(builder: SimpleNamespace) -> None:
    whole = graph(builder)
    builder.graph.check_graph(whole, Path("model.onnx"), builder.support.ONNX_RUNTIME)
    assert builder.graph.tensor_specs(whole) == {
        "inputs": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [3]},
            {"name": "n", "data_type": "TYPE_INT64", "dims": [-1]},
        ],
        "outputs": [{"name": "y", "data_type": "TYPE_FP16", "dims": [2, -1]}],
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"opsets": {"": 27}}, "uses opset 27 and IR version 10; onnxruntime 1.31 reads up to"),
        ({"ir_version": 14}, "IR version 14"),
        ({"opsets": {"": 6}}, "uses opset 6; onnxruntime 1.31 needs 7 or higher"),
        ({"operators": {"com.acme": frozenset({"Polish"})}}, "the domain 'com.acme' (Polish)"),
        ({"inputs": ()}, "has no inputs"),
    ],
)
def test_a_graph_the_runtime_cannot_load(
    builder: SimpleNamespace, refusal: Refusal, change: dict[str, Any], words: str
) -> None:
    whole, where = graph(builder, **change), Path("model.onnx")
    check = builder.graph.check_graph
    assert words in refusal(lambda: check(whole, where, builder.support.ONNX_RUNTIME))


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (("z", "COMPLEX64", ("batch", 1)), "of the ONNX type COMPLEX64"),
        (("z", "BFLOAT16", ("batch", 1)), "of the ONNX type BFLOAT16"),
        (("z", "INT4", ("batch", 1)), "of the ONNX type INT4"),
        (("z", "", None, "sequence"), "z is a sequence; Triton carries tensors only"),
        (("z", "FLOAT", None), "the number of dimensions of z is unknown"),
    ],
)
def test_a_tensor_that_triton_cannot_carry(
    builder: SimpleNamespace, refusal: Refusal, tensor: tuple[Any, ...], words: str
) -> None:
    """As an input or an output, with batches and without."""
    z = builder.graph.OnnxTensor(*tensor)
    for side, batched in itertools.product(("inputs", "outputs"), (True, False)):
        check = partial(
            builder.graph.check_graph,
            graph(builder, **{side: (z,)}),
            Path("model.onnx"),
            builder.support.ONNX_RUNTIME,
            batched=batched,
        )
        assert words in refusal(check)


@pytest.mark.parametrize("rank", range(5))
def test_every_shape(builder: SimpleNamespace, refusal: Refusal, rank: int) -> None:
    """Of each dimension fixed, named or neither: batched with a variable first one, else alone."""
    for shape in itertools.product(*[(3, "n", None)] * rank):
        z = builder.graph.OnnxTensor("z", "FLOAT", shape)
        for side in ("inputs", "outputs"):
            whole = graph(builder, **{side: (z,)})
            where, runtime = Path("model.onnx"), builder.support.ONNX_RUNTIME
            check = partial(builder.graph.check_graph, whole, where, runtime)
            specs = partial(builder.graph.tensor_specs, whole)
            check(batched=False)
            dims = [size if isinstance(size, int) else -1 for size in shape]
            assert specs(batched=False)[side][0]["dims"] == dims
            if not shape or shape[0] == 3:
                expected = "fixed at 3" if shape else "z is a scalar and has no batch dimension"
                assert expected in refusal(check)
                continue
            check()
            assert specs()[side][0]["dims"] == dims[1:]


def test_a_zipmap_is_told_how_to_go(builder: SimpleNamespace) -> None:
    """The remedy names the call of skl2onnx; another sequence has no such remedy."""
    maps = builder.graph.OnnxTensor("maps", "", None, "sequence")
    for operators, expected in (({"ZipMap"}, 'options={"zipmap": False}'), (set(), "with tensors")):
        whole = graph(builder, outputs=(maps,), operators={"ai.onnx.ml": frozenset(operators)})
        with pytest.raises(builder.problems.BuildError) as caught:
            builder.graph.check_graph(whole, Path("model.onnx"), builder.support.ONNX_RUNTIME)
        assert expected in caught.value.remedy


@pytest.mark.parametrize("element", ["FLOAT", "INT64", "STRING"])
def test_tensors_of_the_batch_dimension_alone(builder: SimpleNamespace, element: str) -> None:
    z = builder.graph.OnnxTensor("z", element, ("batch",))
    for side in ("inputs", "outputs"):
        whole = graph(builder, **{side: (z,)})
        builder.graph.check_graph(whole, Path("model.onnx"), builder.support.ONNX_RUNTIME)
        (spec,) = builder.graph.tensor_specs(whole)[side]
        assert (spec["name"], spec["dims"]) == ("z", [])


def test_inputs_that_do_not_share_the_batch_dimension(
    builder: SimpleNamespace, refusal: Refusal
) -> None:
    make = builder.graph.OnnxTensor
    inputs = (make("x", "FLOAT", ("n", 3)), make("y", "FLOAT", ("m", 3)))
    whole, runtime = graph(builder, inputs=inputs), builder.support.ONNX_RUNTIME
    said = refusal(lambda: builder.graph.check_graph(whole, Path("model.onnx"), runtime))
    assert "do not share the batch dimension: x has 'n', y has 'm'" in said
    # A dimension without a name may be the same: the build tries it with several batch sizes.
    unnamed = (inputs[0], make("y", "FLOAT", (None, 3)))
    builder.graph.check_graph(graph(builder, inputs=unnamed), Path("model.onnx"), runtime)
    builder.graph.check_graph(whole, Path("model.onnx"), runtime, batched=False)


def test_a_graph_that_is_quantised_already(builder: SimpleNamespace, refusal: Refusal) -> None:
    whole = graph(builder, operators={"": frozenset({"QuantizeLinear", "MatMul"})})
    said = refusal(lambda: builder.graph.check_not_quantised(whole, Path("model.onnx")))
    assert "is quantised already (QuantizeLinear)" in said


def test_external_data(builder: SimpleNamespace, refusal: Refusal, tmp_path: Path) -> None:
    model, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    check, make = builder.graph.check_external_data, builder.graph.ExternalData
    entry = make("w", "model.onnx.data", 4, 8)
    assert "which is not next to it" in refusal(lambda: check([entry], model))
    data.write_bytes(b"\0" * 11)
    assert "11 bytes are there, and w ends at 12" in refusal(lambda: check([entry], model))
    data.write_bytes(b"\0" * 12)
    assert check([entry, entry], model) == ["model.onnx.data"]


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "data/../../secret"])
def test_external_data_outside_of_the_folder(
    builder: SimpleNamespace, refusal: Refusal, tmp_path: Path, location: str
) -> None:
    entry = builder.graph.ExternalData("w", location, 0, None)
    said = refusal(lambda: builder.graph.check_external_data([entry], tmp_path / "model.onnx"))
    assert "outside its folder" in said
