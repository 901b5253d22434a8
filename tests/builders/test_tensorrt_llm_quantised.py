# SPDX-License-Identifier: Apache-2.0
"""Real quantisation of the shipped checkpoint with ModelOpt; the bytes are read again here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from tests.builders.exported import Array, by_block, header_of, int4, tensors_of
from tests.builders.quantising import EXAMPLE, Quantised, environment, ok, run
from tritonctl.engines.planning.plans import plan_model
from tritonctl.engines.planning.records import ModelPlan
from tritonctl.host.gpus import installed_gpus
from tritonctl.project.file import load_profiles

pytestmark = pytest.mark.engine

ORIGINAL = EXAMPLE / "checkpoint" / "model.safetensors"
STAGES = ["load", "calibrate", "evaluate", "export", "verify"]
QUANT_ALGO = {
    "fp16": None,
    "fp8": "FP8",
    "int8_sq": "W8A8_SQ_PER_CHANNEL",
    "int8_wo": "W8A16",
    "int4_wo": "W4A16",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
}
LEGAL = [
    *((precision, "engine") for precision in QUANT_ALGO),
    *(
        (precision, "pytorch")
        for precision in QUANT_ALGO
        if precision not in {"int8_sq", "int4_wo"}
    ),
]
# One of each way to quantise; the others are combinations.
USUAL: list[tuple[str, str]] = [("fp8", "engine"), ("int8_sq", "engine"), ("int4_awq", "pytorch")]
# How the weights of a linear layer are stored; engine: those that trtllm-build rounds are plain.
STORED = {"fp16": "F16", "fp8": "F8_E4M3", "int8_sq": "I8", "int8_wo": "I8"}
ENGINE_STORED = {**STORED, "int8_wo": "F16", "int4_wo": "F16", "int4_awq": "I8", "w4a8_awq": "I8"}
PYTORCH_STORED = {"fp16": "F16", "fp8": "F8_E4M3", "int8_wo": "I8"}
PYTORCH_STORED |= {"int4_awq": "U8", "w4a8_awq": "U8"}


Quantise = Callable[..., Quantised]


def usual(pairs: Iterable[tuple[str, str]]) -> list[ParameterSet]:
    """Pairs of precision and world as parameters; those beyond the usual ones are exhaustive."""
    return [
        pytest.param(*pair, marks=() if pair in USUAL else pytest.mark.exhaustive) for pair in pairs
    ]


def usual_of(world: str, precisions: Iterable[str]) -> list[ParameterSet]:
    """The same of the precisions of one world."""
    return [
        pytest.param(name, marks=() if (name, world) in USUAL else pytest.mark.exhaustive)
        for name in precisions
    ]


@pytest.fixture(scope="session")
def quantise(tmp_path_factory: pytest.TempPathFactory) -> Quantise:
    """Run the stage with changes to a small request; each request once."""
    python = environment()

    @cache
    def once(changes: str) -> Quantised:
        return run(python, tmp_path_factory.mktemp("quantise"), **json.loads(changes))

    return lambda **changes: once(json.dumps(changes, sort_keys=True))


@pytest.fixture(scope="session")
def original() -> dict[str, Array]:
    """The shipped checkpoint's weights, rounded to what the exports keep."""
    read = tensors_of(ORIGINAL)
    return {name: tensor.astype(np.float16).astype(float) for name, tensor in read.items()}


@pytest.mark.parametrize(("precision", "world"), usual(LEGAL))
def test_the_result_keeps_the_contract(quantise: Quantise, precision: str, world: str) -> None:
    done = ok(quantise(precision=precision, world=world))
    result = done.result
    assert (result["schema"], result["status"]) == ("tritonctl.build-result/1", "ok")
    on_disk = sorted(path for path in done.staging.rglob("*") if path.is_file())
    assert [entry["path"] for entry in result["files"]] == [
        path.relative_to(done.staging).as_posix() for path in on_disk
    ]
    for entry, path in zip(result["files"], on_disk, strict=True):
        assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (done.staging / "tokenizer" / "tokenizer.json").is_file()
    assert result["tensors"] == {"inputs": [], "outputs": []}
    assert result["runtime"]["quant_algo"] == QUANT_ALGO[precision]
    assert result["versions"]["nvidia-modelopt"] == "0.47.0"
    lines = done.output.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("@stage ")] == STAGES
    assert list(result["durations_seconds"]) == STAGES


@pytest.mark.parametrize(("precision", "world"), usual(LEGAL))
def test_the_quantised_model_still_spells(quantise: Quantise, precision: str, world: str) -> None:
    evaluation = ok(quantise(precision=precision, world=world)).result["evaluation"]
    assert evaluation["prompts"] == 4
    assert evaluation["exact_match"] >= 0.75, evaluation["first_divergence"]
    assert 0 <= evaluation["mean_kl_divergence"] < 0.05
    assert 1 <= evaluation["reference_perplexity"] < 1.1
    assert 1 <= evaluation["perplexity"] < 1.2


@pytest.mark.parametrize("precision", usual_of("engine", QUANT_ALGO))
def test_config_of_an_engine_checkpoint(quantise: Quantise, precision: str) -> None:
    done = ok(quantise(precision=precision, world="engine"))
    config = done.config()
    assert config["architecture"] == "LlamaForCausalLM"
    assert config["dtype"] == "float16"
    assert config["rotary_base"] == 10000.0
    assert config["mapping"] == {"world_size": 1, "tp_size": 1, "pp_size": 1}
    assert config["quantization"]["quant_algo"] == QUANT_ALGO[precision]
    assert config["quantization"]["kv_cache_quant_algo"] is None
    assert not (done.checkpoint / "quant_cfg.json").exists()
    header = header_of(done.checkpoint / "rank0.safetensors")
    assert len([name for name in header if name.endswith("qkv.weight")]) == 4
    for name in ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj"):
        weight = header[f"transformer.layers.2.{name}.weight"]
        assert weight["dtype"] == ENGINE_STORED[precision]
    assert header["transformer.vocab_embedding.weight"]["dtype"] == "F16"


@pytest.mark.parametrize("precision", usual_of("pytorch", PYTORCH_STORED))
def test_a_unified_checkpoint(quantise: Quantise, precision: str) -> None:
    done = ok(quantise(precision=precision, world="pytorch"))
    assert done.config()["dtype"] == "float16"
    if precision == "fp16":
        assert not (done.checkpoint / "hf_quant_config.json").exists()
    else:
        quantisation = done.config("hf_quant_config.json")["quantization"]
        assert quantisation["quant_algo"] == QUANT_ALGO[precision]
        assert quantisation["kv_cache_quant_algo"] is None
        assert "lm_head" in quantisation["exclude_modules"]
    header = header_of(done.checkpoint / "model.safetensors")
    for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"):
        weight = header[f"model.layers.3.{name}.weight"]
        assert weight["dtype"] == PYTORCH_STORED[precision]
    assert header["model.norm.weight"]["dtype"] == "F16"


def engine_weight(tensors: dict[str, Array], name: str, precision: str) -> tuple[Array, Array]:
    """A layer's weights as numbers, and the step or the share that rounding may move each by."""
    weight = tensors[f"{name}.weight"]
    scale = tensors.get(f"{name}.weights_scaling_factor", np.ones(1))
    smooth = tensors.get(f"{name}.prequant_scaling_factor", np.ones(1)).astype(float)
    if precision == "fp8":
        return weight * scale, np.abs(weight * scale) / 16 + scale * 2.0**-10
    if precision == "int8_sq":
        step = scale[:, None] * smooth
        return weight * step, step / 2
    if "awq" in precision:
        step = by_block(scale, weight.shape[1]) * smooth
        return int4(weight) * step, step / 2
    return weight.astype(float), np.zeros(1)


@pytest.mark.parametrize("precision", usual_of("engine", QUANT_ALGO))
def test_the_weights_of_an_engine_checkpoint(
    quantise: Quantise, original: dict[str, Array], precision: str
) -> None:
    tensors = ok(quantise(precision=precision, world="engine")).tensors()
    for layer in range(4):
        theirs, ours = f"model.layers.{layer}", f"transformer.layers.{layer}"
        qkv = [original[f"{theirs}.self_attn.{name}_proj.weight"] for name in "qkv"]
        expected = {
            "attention.qkv": np.concatenate(qkv),
            "attention.dense": original[f"{theirs}.self_attn.o_proj.weight"],
            "mlp.fc": original[f"{theirs}.mlp.gate_proj.weight"],
            "mlp.gate": original[f"{theirs}.mlp.up_proj.weight"],
            "mlp.proj": original[f"{theirs}.mlp.down_proj.weight"],
        }
        for name, wanted in expected.items():
            numbers, step = engine_weight(tensors, f"{ours}.{name}", precision)
            assert np.all(np.abs(numbers - wanted) <= step + 0.004 * np.abs(wanted) + 1e-7), name


def test_a_folded_scale_is_in_the_norm(quantise: Quantise, original: dict[str, Array]) -> None:
    tensors = ok(quantise(precision="int4_awq", world="pytorch")).tensors(None)
    layer = "model.layers.1"
    norm = tensors[f"{layer}.input_layernorm.weight"].astype(float)
    before = original[f"{layer}.input_layernorm.weight"]
    assert not np.allclose(norm, before)
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = tensors[f"{layer}.self_attn.{name}.weight"]
        step = by_block(tensors[f"{layer}.self_attn.{name}.weight_scale"], weight.shape[1])
        wanted = original[f"{layer}.self_attn.{name}.weight"] * before
        allowed = step * norm / 2 + 0.004 * np.abs(wanted) + 1e-7
        assert np.all(np.abs(int4(weight) * step * norm - wanted) <= allowed)


def test_tensor_parallel_ranks_are_the_halves(quantise: Quantise) -> None:
    whole = ok(quantise(precision="fp8")).tensors()
    done = ok(quantise(precision="fp8", limits={"tp_size": 2}))
    assert done.config()["mapping"] == {"world_size": 2, "tp_size": 2, "pp_size": 1}
    halves = [done.tensors(rank) for rank in (0, 1)]
    assert set(halves[0]) == set(halves[1]) == set(whole)
    prefix = "transformer.layers.3"
    for name, axis in {"attention.dense": 1, "mlp.proj": 1, "mlp.fc": 0, "mlp.gate": 0}.items():
        joined = np.concatenate([half[f"{prefix}.{name}.weight"] for half in halves], axis=axis)
        assert np.array_equal(joined, whole[f"{prefix}.{name}.weight"])
    # A rank has its heads of q, then of k, then of v: 4, 2 and 2 heads of 32 in all.
    sizes = np.array([128, 64, 64])
    parts = [
        np.split(half[f"{prefix}.attention.qkv.weight"], np.cumsum(sizes // 2)[:-1])
        for half in halves
    ]
    joined = np.concatenate([np.concatenate(pair) for pair in zip(*parts, strict=True)])
    assert np.array_equal(joined, whole[f"{prefix}.attention.qkv.weight"])
    tables = [half["transformer.vocab_embedding.weight"] for half in halves]
    assert np.array_equal(np.concatenate(tables), whole["transformer.vocab_embedding.weight"])


@pytest.mark.exhaustive
def test_pipeline_parallel_ranks_have_half_the_layers(quantise: Quantise) -> None:
    whole = ok(quantise(precision="int4_awq")).tensors()
    done = ok(quantise(precision="int4_awq", limits={"pp_size": 2}))
    assert done.config()["mapping"] == {"world_size": 2, "tp_size": 1, "pp_size": 2}
    assert done.config()["num_hidden_layers"] == 4
    for rank in (0, 1):
        tensors = done.tensors(rank)
        assert ("transformer.vocab_embedding.weight" in tensors) == (rank == 0)
        assert ("lm_head.weight" in tensors) == (rank == 1)
        for layer in (0, 1):
            for name in ("attention.qkv", "mlp.proj"):
                ours = tensors[f"transformer.layers.{layer}.{name}.weight"]
                theirs = whole[f"transformer.layers.{2 * rank + layer}.{name}.weight"]
                assert np.array_equal(ours, theirs)
        assert not any(name.startswith("transformer.layers.2.") for name in tensors)


@pytest.mark.parametrize("dtype", [pytest.param("fp8", marks=pytest.mark.exhaustive), "int8"])
def test_the_kv_cache_of_an_engine(quantise: Quantise, dtype: str) -> None:
    done = ok(quantise(precision="fp16", kv_cache_dtype=dtype))
    assert done.config()["quantization"]["kv_cache_quant_algo"] == dtype.upper()
    tensors = done.tensors()
    for layer in range(4):
        prefix = f"transformer.layers.{layer}.attention"
        scale = tensors[f"{prefix}.kv_cache_scaling_factor"]
        assert scale.shape == (1,)
        # FP8 reaches 448 and has an exponent: no scale below 1 is of use. INT8 needs the range.
        assert scale == 1 if dtype == "fp8" else 0.001 < scale < 1


@pytest.mark.exhaustive
def test_the_kv_cache_of_the_pytorch_runtime(quantise: Quantise) -> None:
    done = ok(quantise(precision="fp8", world="pytorch", kv_cache_dtype="fp8"))
    assert done.config("hf_quant_config.json")["quantization"]["kv_cache_quant_algo"] == "FP8"
    tensors = done.tensors(None)
    scales = [tensor for name, tensor in tensors.items() if name.endswith(("k_scale", "v_scale"))]
    assert len(scales) == 8
    assert all(0 < scale < 1 for scale in scales)


@pytest.mark.exhaustive
def test_smaller_formats_are_smaller(quantise: Quantise) -> None:
    sizes = [
        (ok(quantise(precision=name)).checkpoint / "rank0.safetensors").stat().st_size
        for name in ("fp16", "fp8", "int4_awq")
    ]
    assert sizes[0] > 1.7 * sizes[1] > 1.7 * 1.5 * sizes[2]


@pytest.mark.exhaustive
def test_two_builds_are_equal_byte_for_byte(quantise: Quantise) -> None:
    again = ok(quantise(precision="fp8", fresh=True))
    assert again.result["files"] == ok(quantise(precision="fp8")).result["files"]


@pytest.mark.exhaustive
def test_options_shape_the_checkpoint(quantise: Quantise) -> None:
    coarse = ok(quantise(precision="int4_awq"))
    fine = ok(quantise(precision="int4_awq", options={"awq_block_size": 64, "dtype": "bfloat16"}))
    assert fine.config()["quantization"]["group_size"] == 64
    assert fine.config()["dtype"] == "bfloat16"
    name = "transformer.layers.0.mlp.proj.weights_scaling_factor"
    assert coarse.tensors()[name].shape == (128, 4)
    assert fine.tensors()[name].shape == (128, 8)


@pytest.mark.exhaustive
def test_the_alpha_of_smoothquant_moves_the_scales(quantise: Quantise) -> None:
    name = "transformer.layers.0.mlp.fc.prequant_scaling_factor"
    usual = ok(quantise(precision="int8_sq")).tensors()[name]
    other = ok(quantise(precision="int8_sq", options={"smoothquant_alpha": 0.9})).tensors()[name]
    assert not np.allclose(usual, other)


@pytest.mark.exhaustive
def test_the_cap_of_awq_is_told(quantise: Quantise) -> None:
    done = ok(quantise(precision="int4_awq", calibration={"samples": 40}))
    assert "AWQ calibrates on 32 of the 40 samples asked for" in done.output
    assert done.result["runtime"]["calibration_samples"] == 32


def test_nvfp4_needs_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # also on a machine with one, in a new process
    done = run(environment(), tmp_path, fresh=bool(installed_gpus()[0]), precision="nvfp4")
    assert done.code == 1
    assert "nvfp4 needs CUDA" in done.result["problem"]
    assert "int4_awq" in done.result["remedy"]


@pytest.mark.exhaustive
def test_a_missed_accuracy_fails_the_build(quantise: Quantise, tmp_path: Path) -> None:
    for path in (EXAMPLE / "checkpoint").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = ORIGINAL.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    random = np.random.default_rng(0).normal(0, 0.2, (len(content) - start) // 4)
    noise = content[:start] + random.astype(np.float32).tobytes()
    (tmp_path / "model.safetensors").write_bytes(noise)
    evaluation = {"max_prompts": 8, "min_exact_match": 1.0}
    done = quantise(checkpoint=str(tmp_path), precision="int4_wo", evaluation=evaluation)
    assert done.code == 1
    assert "of 8 prompts exactly as the checkpoint does" in done.result["problem"]
    assert "Set engine.precision to int4_awq" in done.result["remedy"]
    assert not done.checkpoint.joinpath("config.json").exists()


@pytest.mark.parametrize(("precision", "world"), usual(pair for pair in LEGAL if pair[0] != "fp16"))
def test_plan_of_an_export(quantise: Quantise, tmp_path: Path, precision: str, world: str) -> None:
    """`tritonctl plan` reads the exact bytes, and the parameters that were packed into them."""
    done = ok(quantise(precision=precision, world=world))
    plan = _planned(done.checkpoint, tmp_path)
    headers = [header_of(file) for file in done.checkpoint.glob("*.safetensors")]
    offsets = [entry["data_offsets"] for header in headers for entry in header.values()]
    assert plan.weights == sum(end - start for start, end in offsets)
    assert plan.parameters == sum(tensor.size for tensor in tensors_of(ORIGINAL).values())
    assert "already quantised" in plan.notes[0]


@pytest.mark.exhaustive
def test_plan_of_an_export_for_two_gpus(quantise: Quantise, tmp_path: Path) -> None:
    """What both ranks have is one parameter; the fuller rank is what a GPU holds."""
    done = ok(quantise(precision="fp8", kv_cache_dtype="fp8", limits={"tp_size": 2}))
    plan = _planned(done.checkpoint, tmp_path, tp_size=2)
    assert plan.parameters == sum(tensor.size for tensor in tensors_of(ORIGINAL).values())
    assert plan.kv_bytes_per_token == 2 * 4 * 1 * 32
    assert plan.weights / 2 < plan.fits[0].needed


def _planned(checkpoint: Path, folder: Path, **engine: int) -> ModelPlan:
    """As a project that asks for yet another precision."""
    engines = {"builder": "tensorrt_llm", "precision": "int4_awq", "max_seq_len": 24, **engine}
    models = {"speller": {"checkpoint": str(checkpoint), "engine": engines}}
    project = {"schema": "tritonctl/v1", "models": models}
    (folder / "tritonctl.yaml").write_text(json.dumps(project), encoding="utf-8")
    return plan_model(load_profiles(folder, environment={})[None], "speller", ["H100"])
