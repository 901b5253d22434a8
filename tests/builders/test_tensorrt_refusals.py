# SPDX-License-Identifier: Apache-2.0
"""Every refusal rule of the TensorRT builder, in the order a build meets them. No GPU needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders.conftest import Refusal, modules_of

NAMES = ("network", "options", "profiles", "rules", "gpu", "task_plans", "build")
BATCH = 32


@pytest.fixture(scope="module")
def builder() -> Iterator[SimpleNamespace]:
    """The TensorRT builder's modules, and buildlib's."""
    with modules_of("tensorrt", NAMES) as modules:
        yield modules


def options(builder: SimpleNamespace, **changes: Any) -> Any:
    return builder.options.TensorrtOptions(**changes)


def asked(builder: SimpleNamespace, precision: str = "fp16", **changes: Any) -> Any:
    limits = builder.request_types.RequestedLimits(max_batch_size=BATCH)
    return replace(
        builder.request_types.BuilderRequest("m", Path("x"), precision, limits), **changes
    )


def network(builder: SimpleNamespace, *shape: int, **changes: Any) -> Any:
    tensor = builder.network.NetworkTensor
    inputs = (tensor("x", "FLOAT", shape or (-1, 8)),)
    made = builder.network.Network(inputs, (tensor("y", "FLOAT", (-1, 4)),))
    return replace(made, **changes)


def shapes(low: list[int], best: list[int], high: list[int]) -> dict[str, list[int]]:
    return {"min": low, "opt": best, "max": high}


# What is asked for.


@pytest.mark.parametrize(
    ("precision", "raw", "words"),
    [
        ("fp4", {}, "has no precision 'fp4'"),
        ("fp16", {"profile": {}}, "unknown key 'profile' (did you mean profiles?)"),
        ("fp16", {"profiles": [1]}, "engine.options.profiles is [1]"),
        ("fp16", {"builder_optimization_level": 6}, "builder_optimization_level is 6"),
        ("fp16", {"workspace_mib": 0}, "workspace_mib is 0"),
        ("fp16", {"workspace_mib": True}, "workspace_mib is True"),
        ("fp16", {"strongly_typed": 1}, "strongly_typed is 1"),
        ("int8", {"calibrator": "max"}, "calibrator is 'max'"),
        ("fp16", {"hardware_compatibility": "ampere"}, "(did you mean ampere_plus?)"),
        ("fp16", {"timing_cache": "../x"}, "timing_cache is '../x'"),
    ],
)
def test_options_that_are_refused(
    builder: SimpleNamespace, refusal: Refusal, precision: str, raw: dict[str, Any], words: str
) -> None:
    request = asked(builder, precision, options=raw)
    assert words in refusal(lambda: builder.options.read_options(request))


@pytest.mark.parametrize(
    ("task", "raw", "words"),
    [
        (None, {"pooling": "mean"}, "unknown key 'pooling'"),
        (None, {"bounds": {}}, "unknown key 'bounds'"),
        ("embedding", {"calibrator": "entropy"}, "unknown key 'calibrator'"),
        ("embedding", {"strongly_typed": False}, "unknown key 'strongly_typed'"),
        ("embedding", {"bounds": [1]}, "engine.options.bounds is [1]"),
        ("embedding", {"bounds": {"cosin": 1}}, "(did you mean cosine?)"),
    ],
)
def test_options_of_tasks_and_of_graphs(
    builder: SimpleNamespace, refusal: Refusal, task: str | None, raw: dict[str, Any], words: str
) -> None:
    request = asked(builder, options=raw, task=task)
    assert words in refusal(lambda: builder.options.read_options(request))


def test_a_task_s_types_are_those_of_its_graph(builder: SimpleNamespace) -> None:
    """TF32 would break the bounds of fp32, so it is asked for or left."""
    read = builder.options.read_options
    given = read(asked(builder, task="rerank", options={"pooling": "mean", "bounds": {"score": 1}}))
    assert (given.strongly_typed, given.tf32, given.bounds) == (True, False, {"score": 1})
    assert read(asked(builder, task="rerank", options={"tf32": True})).tf32 is True
    assert read(asked(builder)).tf32 is True


def test_profiles_by_tokens(builder: SimpleNamespace) -> None:
    """One for each magnitude of a text's length, fastest at so many tokens a run."""
    made = builder.profiles.token_profiles(["x", "mask"], BATCH, 200, 1024)
    assert [one["x"] for one in made] == [
        shapes([1, 1], [32, 32], [BATCH, 32]),
        shapes([1, 1], [8, 128], [BATCH, 128]),
        shapes([1, 1], [5, 200], [BATCH, 200]),
    ]
    assert all(one["mask"] == one["x"] for one in made)
    [only] = builder.profiles.token_profiles(["x"], 2, 16, 8)
    assert only["x"] == shapes([1, 1], [1, 16], [2, 16])


def test_a_task_without_its_export(
    builder: SimpleNamespace, refusal: Refusal, tmp_path: Path
) -> None:
    read = builder.task_plans.exported_task_for
    assert read(asked(builder)) is None
    assert "names no source" in refusal(lambda: read(asked(builder, task="rerank")))
    (tmp_path / "task").mkdir()
    record = tmp_path / "task" / "task.json"
    record.write_text('{"task": "embedding", "text": {"max_seq_len": 8}}', encoding="utf-8")
    other = asked(builder, task="rerank", source=tmp_path)
    assert "of another task than rerank" in refusal(lambda: read(other))
    parts = read(asked(builder, task="embedding", source=tmp_path))
    assert (parts.lengths["max_seq_len"], parts.facts) == (8, {})
    assert [str(folder) for folder in parts.folders] == ["tokenizer", "task", "proof"]


def test_kv_cache_and_several_gpus(builder: SimpleNamespace, refusal: Refusal) -> None:
    read = builder.options.read_options
    assert "has no KV cache" in refusal(lambda: read(asked(builder, kv_cache_dtype="fp8")))
    limits = builder.request_types.RequestedLimits(max_batch_size=1, tp_size=2)
    assert "engine.tp_size is 2" in refusal(lambda: read(asked(builder, limits=limits)))


def test_one_set_of_shapes_is_a_list_of_one(builder: SimpleNamespace) -> None:
    profile = {"x": shapes([1, 8], [4, 8], [32, 8])}
    request = asked(builder, options={"profiles": profile})
    assert builder.options.read_options(request).profiles == [profile]


def test_a_checkpoint_without_a_graph(
    builder: SimpleNamespace, refusal: Refusal, tmp_path: Path
) -> None:
    assert "holds no ONNX graph" in refusal(lambda: builder.build.find_graph(tmp_path))
    (tmp_path / "model.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "git-lfs pointer" in refusal(lambda: builder.build.find_graph(tmp_path))
    (tmp_path / "model.onnx").write_bytes(b"graph")
    assert builder.build.find_graph(tmp_path) == tmp_path / "model.onnx"


def test_a_timing_cache_that_is_not_there(
    builder: SimpleNamespace, refusal: Refusal, tmp_path: Path
) -> None:
    model, given = tmp_path / "model.onnx", options(builder, timing_cache="timing.cache")
    said = refusal(lambda: builder.build.read_timing_cache(model, given))
    assert "timing.cache does not exist" in said
    (tmp_path / "timing.cache").write_bytes(b"times")
    assert builder.build.read_timing_cache(model, given) == b"times"
    assert builder.build.read_timing_cache(model, options(builder)) == b""


def test_calibration_without_samples(
    builder: SimpleNamespace, refusal: Refusal, tmp_path: Path
) -> None:
    check = builder.rules.check_calibration_data
    assert "holds no .npz samples" in refusal(lambda: check(tmp_path))
    assert "holds no .npz samples" in refusal(lambda: check(tmp_path / "texts.txt"))
    (tmp_path / "0.npz").write_bytes(b"")
    assert check(tmp_path) == [tmp_path / "0.npz"]


# The GPU and the version.


@pytest.mark.parametrize(
    ("precision", "capability", "fits"),
    [
        ("fp8", "8.9", True),
        ("fp8", "9.0", True),
        ("fp8", "10.0", True),
        ("fp8", "8.6", False),
        ("fp8", "7.5", False),
        ("int8", "7.5", True),
        ("fp16", "7.5", True),
        ("fp16", "7.0", False),
        ("fp32", "7.0", False),
        ("fp8", None, True),
    ],
)
def test_precision_against_compute_capability(
    builder: SimpleNamespace, refusal: Refusal, precision: str, capability: str | None, fits: bool
) -> None:
    def check() -> None:
        builder.rules.check_compute_capability(precision, capability)

    if fits:
        check()
    else:
        assert f"and the GPU has {capability}" in refusal(check)


def test_no_gpu(builder: SimpleNamespace, refusal: Refusal) -> None:
    check = builder.rules.check_device
    assert "nvidia-smi found no GPU" in refusal(lambda: check("9.0", None, options(builder)))


def test_a_gpu_of_another_kind_than_the_target_s(
    builder: SimpleNamespace, refusal: Refusal
) -> None:
    check, none = builder.rules.check_device, options(builder)
    check("9.0", "9.0", none)
    check(None, "8.6", none)
    said = refusal(lambda: check("9.0", "8.6", none))
    assert "this GPU has compute capability 8.6, and the engine is for 9.0" in said
    plus = options(builder, hardware_compatibility="ampere_plus")
    check("9.0", "8.6", plus)
    assert "and the engine is for 9.0" in refusal(lambda: check("9.0", "7.5", plus))


def test_version_lock(builder: SimpleNamespace, refusal: Refusal) -> None:
    check, none = builder.rules.check_version, options(builder)
    check("10.14.1.48", "10.14.1.48", none)
    check("10.14.1.48", "10.14.1.48.post1", none)
    check(None, "10.14.1.48", none)
    said = refusal(lambda: check("10.14.1.48", "10.13.3.9", none))
    assert "TensorRT here is 10.13.3.9, and the target's server has 10.14.1.48" in said
    compatible = options(builder, version_compatible=True)
    check("10.14.1.48", "10.13.3.9", compatible)
    assert "TensorRT here is" in refusal(lambda: check("10.13.3.9", "10.14.1.48", compatible))
    assert "TensorRT here is" in refusal(lambda: check("11.4.0.106", "10.14.1.48", compatible))


# Types and scales.


def test_a_flag_on_a_strongly_typed_network(builder: SimpleNamespace, refusal: Refusal) -> None:
    check, typed = builder.rules.check_typing, options(builder, strongly_typed=True)
    said = refusal(lambda: check("fp16", typed, "10.14.1", calibrated=False))
    assert "sets a flag that strongly typed networks refuse" in said
    check("fp32", typed, "10.14.1", calibrated=False)
    check("fp16", options(builder), "10.14.1", calibrated=False)


def test_fp16_in_tensorrt_11(builder: SimpleNamespace, refusal: Refusal) -> None:
    check = builder.rules.check_typing
    said = refusal(lambda: check("fp16", options(builder), "11.4.0.106", calibrated=False))
    assert "the graph decides on fp16, not a flag" in said


@pytest.mark.parametrize(("typed", "installed"), [(True, "10.14.1"), (False, "11.0.0")])
def test_calibration_of_a_strongly_typed_network(
    builder: SimpleNamespace, refusal: Refusal, typed: bool, installed: str
) -> None:
    given = options(builder, strongly_typed=typed)
    check = builder.rules.check_typing
    said = refusal(lambda: check("int8", given, installed, calibrated=True))
    assert "strongly typed networks, which cannot be calibrated" in said


QUANTISATION = [
    ("int8", {"INT8"}, False, None),
    ("int8", set(), True, None),
    ("fp8", {"FP8"}, False, None),
    ("fp16", set(), False, None),
    ("int8", set(), False, "precision int8 needs scales"),
    ("fp8", set(), False, "precision fp8 needs scales"),
    ("fp8", set(), True, "TensorRT calibrates int8 only"),
    ("int8", {"INT8"}, True, "TensorRT would not use the calibration"),
    ("int8", {"FP8"}, False, "has Q/DQ nodes of the type FP8, and the precision is int8"),
    ("fp16", {"INT8"}, False, "has Q/DQ nodes (INT8), and the precision is fp16"),
]


@pytest.mark.parametrize(("precision", "found", "calibrated", "words"), QUANTISATION)
def test_scales_from_one_place(
    builder: SimpleNamespace,
    refusal: Refusal,
    precision: str,
    found: set[str],
    calibrated: bool,
    words: str | None,
) -> None:
    graph = network(builder, quantised=frozenset(found))

    def check() -> None:
        builder.rules.check_quantisation(precision, graph, calibrated=calibrated)

    if words is None:
        check()
    else:
        assert words in refusal(check)


# The border.


@pytest.mark.parametrize(
    ("data_type", "shape", "words"),
    [
        ("FP8", (-1, 4), "x is of the type FP8, which Triton cannot carry"),
        ("INT4", (-1, 4), "x is of the type INT4"),
        ("FLOAT", (), "x is a scalar"),
        ("FLOAT", (1, 4), "the first dimension of x is fixed at 1"),
        ("FLOAT", (4,), "the first dimension of x is fixed at 4"),
    ],
)
def test_a_border_that_triton_cannot_batch(
    builder: SimpleNamespace, refusal: Refusal, data_type: str, shape: tuple[int, ...], words: str
) -> None:
    tensor = (builder.network.NetworkTensor("x", data_type, shape),)
    for side in ("inputs", "outputs"):
        graph = network(builder, **{side: tensor})
        assert words in refusal(lambda: builder.rules.check_border(graph, batched=True))  # noqa: B023
    builder.rules.check_border(network(builder), batched=True)


@pytest.mark.parametrize("shape", [(-1,), (-1, 4), (-1, -1, 3)])
def test_a_border_with_a_batch(builder: SimpleNamespace, shape: tuple[int, ...]) -> None:
    """A classifier's label has the batch dimension alone."""
    tensor = builder.network.NetworkTensor("x", "FLOAT", shape)
    for side in ("inputs", "outputs"):
        builder.rules.check_border(network(builder, **{side: (tensor,)}), batched=True)
    assert tensor.spec(batched=True)["dims"] == list(shape[1:])


@pytest.mark.parametrize("shape", [(1,), (-1,), (1, 3, 8, 8), (-1, 4)])
def test_a_border_without_a_batch(builder: SimpleNamespace, shape: tuple[int, ...]) -> None:
    """Any shape but a scalar's."""
    tensor = builder.network.NetworkTensor("x", "FLOAT", shape)
    for side in ("inputs", "outputs"):
        builder.rules.check_border(network(builder, **{side: (tensor,)}), batched=False)
    assert tensor.spec(batched=False)["dims"] == list(shape)


# Profiles.


def resolve(builder: SimpleNamespace, graph: Any, *profiles: Any) -> Callable[[], Any]:
    return lambda: builder.profiles.resolve_profiles(graph, profiles, BATCH)


def test_only_the_batch_is_variable(builder: SimpleNamespace) -> None:
    ((profile),) = resolve(builder, network(builder))()
    made = profile["x"]
    assert (made.min, made.opt, made.max) == ((1, 8), (BATCH, 8), (BATCH, 8))


def test_profiles_without_a_batch(builder: SimpleNamespace, refusal: Refusal) -> None:
    """Fixed shapes need none; the first dimension is like any other."""
    tensor = builder.network.NetworkTensor
    fixed = network(builder, inputs=(tensor("x", "FLOAT", (1, 8)), tensor("y", "FLOAT", (5,))))
    [profile] = builder.profiles.resolve_profiles(fixed, (), 0)
    assert (profile["x"].min, profile["y"].max) == ((1, 8), (5,))
    variable = network(builder, inputs=(tensor("x", "FLOAT", (-1, 8)),))
    said = refusal(lambda: builder.profiles.resolve_profiles(variable, (), 0))
    assert "how large dimension 0 may be" in said
    chosen = {"x": shapes([2, 8], [4, 8], [16, 8])}
    [profile] = builder.profiles.resolve_profiles(variable, (chosen,), 0)
    assert profile["x"].max == (16, 8)


def test_several_profiles(builder: SimpleNamespace) -> None:
    short = {"x": shapes([1, 1], [8, 16], [BATCH, 64])}
    long = {"x": shapes([1, 64], [8, 128], [BATCH, 512])}
    first, second = resolve(builder, network(builder, -1, -1), short, long)()
    assert (first["x"].max, second["x"].min) == ((BATCH, 64), (1, 64))


def test_a_variable_dimension_without_a_profile(builder: SimpleNamespace, refusal: Refusal) -> None:
    said = refusal(resolve(builder, network(builder, -1, 3, -1)))
    assert "the input x has the shape [-1, 3, -1]" in said
    assert "how large dimension 2 may be" in said


PROFILES = [
    ({"y": shapes([1, 8], [1, 8], [32, 8])}, "the graph has no input 'y'"),
    ({"x": {"min": [1, 8], "max": [32, 8]}}, "it needs min, opt and max"),
    ({"x": shapes([0, 8], [1, 8], [32, 8])}, "x.min is [0, 8]: it needs one size of at least 1"),
    ({"x": {"min": "1x8", "opt": [1, 8], "max": [32, 8]}}, "x.min is '1x8'"),
    ({"x": shapes([1], [8], [32])}, "x.min has 1 dimensions, and the input has 2: [-1, 8]"),
    ({"x": shapes([1, 4], [8, 8], [32, 8])}, "x.min has 4 in dimension 1, which the graph fixes"),
    ({"x": shapes([1, 8], [33, 8], [32, 8])}, "dimension 0 has min 1, opt 33, max 32"),
    ({"x": shapes([2, 8], [8, 8], [32, 8])}, "the smallest batch is 2"),
    ({"x": shapes([1, 8], [8, 8], [16, 8])}, "the largest batch is 16, and engine.max_batch_size"),
]


@pytest.mark.parametrize(("profile", "words"), PROFILES)
def test_a_profile_that_does_not_fit(
    builder: SimpleNamespace, refusal: Refusal, profile: dict[str, Any], words: str
) -> None:
    said = refusal(resolve(builder, network(builder), profile))
    assert words in said
    assert "engine.options.profiles[0]" in said


def test_min_opt_max_must_not_fall(builder: SimpleNamespace, refusal: Refusal) -> None:
    falling = {"x": shapes([1, 64], [8, 16], [32, 128])}
    said = refusal(resolve(builder, network(builder, -1, -1), falling))
    assert "dimension 1 has min 64, opt 16, max 128" in said


def test_inputs_with_different_batches(builder: SimpleNamespace, refusal: Refusal) -> None:
    tensor = builder.network.NetworkTensor
    two = (tensor("x", "FLOAT", (-1, 8)), tensor("mask", "BOOL", (-1, 8)))
    profile = {"x": shapes([1, 8], [8, 8], [32, 8]), "mask": shapes([1, 8], [16, 8], [32, 8])}
    said = refusal(resolve(builder, network(builder, inputs=two), profile))
    assert "do not share their batches (min, opt, max): x [1, 8, 32], mask [1, 16, 32]" in said


# Odds and ends.


def test_what_nvidia_smi_says(builder: SimpleNamespace) -> None:
    two = "NVIDIA H100 80GB HBM3, 9.0\nNVIDIA A2, 8.6\n"
    first = builder.gpu.parse_gpu(two)
    assert (first.name, first.compute_capability) == ("NVIDIA H100 80GB HBM3", "9.0")
    h200 = builder.gpu.parse_gpu("NVIDIA H200, 9.0\n")  # as driver 580 prints it
    assert (h200.name, h200.compute_capability) == ("NVIDIA H200", "9.0")
    assert builder.gpu.parse_gpu("").compute_capability is None


def test_tensors_in_the_result(builder: SimpleNamespace) -> None:
    tensor = builder.network.NetworkTensor("x", "HALF", (-1, 3, -1))
    assert tensor.spec(batched=True) == {"name": "x", "data_type": "TYPE_FP16", "dims": [3, -1]}
    assert tensor.spec(batched=False)["dims"] == [-1, 3, -1]
