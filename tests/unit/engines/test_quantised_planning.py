# SPDX-License-Identifier: Apache-2.0
"""`tritonctl plan` of checkpoints that are quantised already, in every format that it knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import headers
from tests import quantised_headers as layouts
from tritonctl.engines.planning.plans import plan_model
from tritonctl.engines.planning.records import ModelPlan
from tritonctl.errors import ConfigurationError

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

LLAMA_3_8B = 8_030_261_248
GIB = 1 << 30


def _groups(bits: int, form: str, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int"}}
    record = {"quant_method": "compressed-tensors", "format": form}
    return record | {"config_groups": {"group_0": group}} | more


FORMATS: dict[str, tuple[layouts.Layout, dict[str, Any]]] = {
    "awq": (layouts.awq, {"quant_method": "awq", "bits": 4, "group_size": 128}),
    "gptq in 4 bits": (layouts.gptq(4), {"quant_method": "gptq", "bits": 4}),
    "gptq in 3 bits": (layouts.gptq(3), {"quant_method": "gptq", "bits": 3}),
    "gptq in 8 bits": (layouts.gptq(8), {"quant_method": "gptq", "bits": 8}),
    "auto-round": (layouts.gptq(2), {"quant_method": "auto-round", "bits": 2}),
    "fp8": (layouts.block_fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "pack-quantized int4": (layouts.packed(4), _groups(4, "pack-quantized")),
    "pack-quantized int8": (layouts.packed(8), _groups(8, "pack-quantized")),
    "nvfp4-pack-quantized": (layouts.packed_nvfp4, _groups(4, "nvfp4-pack-quantized")),
    "int-quantized": (layouts.int8, _groups(8, "int-quantized")),
    "nf4": (layouts.nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "nf4 without its name": (layouts.nf4, {"load_in_4bit": True}),
    "nf4 in bf16": (layouts.nf4_in_bf16, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "llm.int8": (layouts.llm_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "modelopt fp8": (layouts.modelopt_fp8, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "modelopt nvfp4": (layouts.modelopt_nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "modelopt awq": (layouts.modelopt_awq, {"quant_algo": "W4A16_AWQ"}),
}


@pytest.fixture
def large(sandbox: Sandbox) -> Sandbox:
    """A project that serves Llama 3 8B with TensorRT-LLM, asking for a precision of its own."""
    sandbox.data["models"]["speller"]["checkpoint"] = "8b"
    sandbox.engine.update(
        builder="tensorrt_llm", precision="int4_awq", max_batch_size=16, max_seq_len=4096
    )
    sandbox.engine["options"] = {}
    return sandbox


def _plan(sandbox: Sandbox, **engine: object) -> ModelPlan:
    sandbox.engine.update(engine)
    return plan_model(sandbox.load(), "speller", ["H100"])


def _write(sandbox: Sandbox, layout: layouts.Layout, record: Mapping[str, Any] | None) -> int:
    return layouts.write(sandbox.root / "8b", layout, record)


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_files_hold(large: Sandbox, name: str) -> None:
    """Every byte, and every parameter that was packed; the precision asked for changes neither."""
    layout, record = FORMATS[name]
    stored = _write(large, layout, record)
    for precision in ("bf16", "int4_awq"):
        plan = _plan(large, precision=precision)
        assert (plan.parameters, plan.weights) == (LLAMA_3_8B, stored)
    assert plan.kv_bytes_per_token == 131_072
    (fit,) = plan.fits
    assert stored < fit.needed - 16 * 4096 * 131_072 < stored + GIB
    assert "already quantised (" in plan.notes[0]
    assert len(plan.notes) == 1


def test_two_devices_share_what_is_packed(large: Sandbox) -> None:
    """Packed weights and their scales are divided, norms are not."""
    stored = _write(large, *FORMATS["nf4"])
    large.engine.update(max_batch_size=1, max_seq_len=32, max_num_tokens=1)
    assert _plan(large).fits[0].needed == pytest.approx(stored, rel=0.002)
    assert _plan(large, tp_size=2).fits[0].needed == pytest.approx(stored / 2, rel=0.002)


@pytest.mark.parametrize(
    ("layout", "record"),
    [
        (layouts.hqq, {"quant_method": "hqq"}),
        (layouts.hqq, {"quant_method": "awq"}),
        (layouts.hqq, {}),
        (layouts.awq, {"quant_method": "fp8"}),
        (layouts.packed(4), _groups(4, "marlin-24")),
        (layouts.packed(4), _groups(4, "pack-quantized", sparsity_config={"format": "sparse-24"})),
        (layouts.packed(4), _groups(4, "pack-quantized") | {"config_groups": {}}),
        (layouts.packed(4), _groups(4, "pack-quantized") | {"config_groups": []}),
    ],
)
def test_formats_that_cannot_be_told(
    large: Sandbox, layout: layouts.Layout, record: dict[str, Any]
) -> None:
    """The bytes are right; that the parameters are not known is said."""
    stored = _write(large, layout, record)
    plan = _plan(large)
    assert (plan.parameters, plan.weights) == (None, stored)
    assert "is unknown: bytes are exact, the number of weights is not" in plan.notes[1]
    assert plan.fits[0].needed > stored


def test_an_unknown_format_on_a_cpu(large: Sandbox) -> None:
    """What a build takes is not told where none can be."""
    stored = _write(large, layouts.hqq, {"quant_method": "hqq"})
    plan = _plan(large, builder="openvino", precision="int8")
    assert (plan.weights, plan.build_memory, plan.build_seconds) == (stored, None, None)
    assert plan.disk == plan.files


MIXED = {
    "dense": {"targets": ["Linear"], "weights": {"num_bits": 4}},
    "wide": {"targets": [r"re:.*down_proj"], "weights": {"num_bits": 8}},
    "last": {"targets": ["model.layers.31.self_attn.q_proj"], "weights": {"num_bits": 8}},
    "broken": {"targets": ["re:("], "weights": {"num_bits": 2}},
}


def test_layers_of_several_widths(large: Sandbox) -> None:
    """compressed-tensors: a group that names a module goes before the one for its class."""

    def layout(out: int, into: int) -> layouts.Leaves:
        return layouts.packed(8 if into == 14336 else 4)(out, into)

    _write(large, layout, _groups(4, "pack-quantized") | {"config_groups": MIXED})
    # The one layer that only its whole name makes 8 bits wide has half as many then.
    assert _plan(large).parameters == LLAMA_3_8B - 4096 * 4096 // 2


def test_gptq_of_several_widths(large: Sandbox) -> None:
    """GPTQModel's `dynamic`: each layer's zero points tell its own bits."""

    def layout(out: int, into: int) -> layouts.Leaves:
        return layouts.gptq(8 if into == 14336 else 4)(out, into)

    _write(large, layout, {"quant_method": "gptq", "bits": 4})
    assert _plan(large).parameters == LLAMA_3_8B


def test_gptq_without_zero_points(large: Sandbox) -> None:
    """The bits are those of the configuration then."""

    def layout(out: int, into: int) -> layouts.Leaves:
        leaves = layouts.gptq(4)(out, into)
        return {name: leaf for name, leaf in leaves.items() if name != "qzeros"}

    _write(large, layout, {"quant_method": "gptq", "bits": 4})
    assert _plan(large).parameters == LLAMA_3_8B


def test_unified_checkpoints_without_a_configuration_in_config_json(large: Sandbox) -> None:
    """ModelOpt's own file is enough; it tells the KV cache, which the project may overrule."""
    stored = _write(large, layouts.modelopt_awq, None)
    record = {"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": "FP8"}
    file = large.root / "8b" / "hf_quant_config.json"
    file.write_text(json.dumps({"quantization": record}), encoding="utf-8")
    plan = _plan(large)
    assert (plan.parameters, plan.weights) == (LLAMA_3_8B, stored)
    assert plan.kv_bytes_per_token == 65_536
    assert "modelopt, W4A16_AWQ" in plan.notes[0]
    assert "KV cache of fp8" in plan.notes[1]
    plan = _plan(large, kv_cache_dtype="fp16")
    assert plan.kv_bytes_per_token == 131_072
    assert len(plan.notes) == 1


def test_kv_scheme_of_compressed_tensors(large: Sandbox) -> None:
    """On a GPU; the CPU engine has a cache of its own."""
    scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    _write(large, layouts.packed(4), _groups(4, "pack-quantized", **scheme))
    assert _plan(large).kv_bytes_per_token == 65_536
    on_cpu = _plan(large, builder="openvino", precision="fp32")
    assert on_cpu.kv_bytes_per_token == 262_144


def test_mixed_precision_of_modelopt(large: Sandbox) -> None:
    """I8 is 8 bits in one layer and two weights in another: its algorithm says which."""

    def layout(out: int, into: int) -> layouts.Leaves:
        if into == 14336:
            return {"weight": ("I8", (out, into)), "weight_scale": ("F32", (out,))}
        return {"weight": ("I8", (out // 2, into)), "weight_scale": ("F32", (out, into // 128))}

    _write(large, layout, None)
    wide = [f"model.layers.{layer}.mlp.down_proj" for layer in range(32)]
    layers = {name: {"quant_algo": "W8A16"} for name in wide}
    record = {"quant_algo": "W4A16_AWQ", "quantized_layers": layers}
    file = large.root / "8b" / "hf_quant_config.json"
    file.write_text(json.dumps({"quantization": record}), encoding="utf-8")
    assert _plan(large).parameters == LLAMA_3_8B


def _tensorrt_llm(folder: Path, ranks: int, **config: Any) -> int:
    """Two layers of a Llama, divided by tensor parallelism."""
    folder.mkdir()
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "head_size": 64, "num_hidden_layers": 2}
    quantisation = {"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": "INT8"}
    whole = {"architecture": "LlamaForCausalLM", "vocab_size": 1024, **sizes}
    whole |= {"mapping": {"tp_size": ranks, "pp_size": 1}, "quantization": quantisation, **config}
    (folder / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    linear = {"attention.qkv": (512 // ranks, 256), "attention.dense": (256, 256 // ranks)}
    linear |= {"mlp.fc": (512 // ranks, 256), "mlp.gate": (512 // ranks, 256)}
    linear |= {"mlp.proj": (256, 512 // ranks)}
    table = 1024 // ranks if config.get("use_parallel_embedding", True) else 1024
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "transformer.vocab_embedding.weight": ("F16", (table, 256)),
        "lm_head.weight": ("F16", (1024 // ranks, 256)),
        "transformer.ln_f.weight": ("F16", (256,)),
    }
    for layer in range(2):
        at = f"transformer.layers.{layer}"
        tensors[f"{at}.input_layernorm.weight"] = ("F16", (256,))
        for name, (out, into) in linear.items():
            tensors[f"{at}.{name}.weight"] = ("I8", (out // 2, into))
            tensors[f"{at}.{name}.weights_scaling_factor"] = ("F32", (out, into // 128))
            tensors[f"{at}.{name}.prequant_scaling_factor"] = ("F16", (into,))
        tensors[f"{at}.attention.dense.bias"] = ("F16", (256,))
        tensors[f"{at}.attention.qkv.bias"] = ("F16", (512 // ranks,))
    files = [folder / f"rank{rank}.safetensors" for rank in range(ranks)]
    return sum(layouts.write_tensors(file, tensors) for file in files)


# Matrices, the table and the head, norms and biases of the model that _tensorrt_llm() writes.
SMALL = 2 * (512 + 256 + 3 * 512) * 256 + 2 * 1024 * 256 + 256 + 2 * (256 + 256 + 512)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("ranks", [1, 2])
def test_checkpoints_of_tensorrt_llm(large: Sandbox, ranks: int, parallel: bool) -> None:
    """What ranks repeat is one parameter; a device holds what its own file does."""
    stored = _tensorrt_llm(large.root / "8b", ranks, use_parallel_embedding=parallel)
    plan = _plan(large, max_seq_len=32, max_batch_size=1, max_num_tokens=1, tp_size=ranks)
    assert (plan.parameters, plan.weights) == (SMALL, stored)
    assert plan.kv_bytes_per_token == 2 * 2 * (2 // ranks) * 64
    (fit,) = plan.fits
    assert fit.count == ranks
    rest = plan.activations + 1024 * 4 + 32 * plan.kv_bytes_per_token
    assert fit.needed == pytest.approx(stored / ranks + rest, abs=2)


def test_weights_that_trtllm_build_rounds(large: Sandbox) -> None:
    """They lie there in 16 bits, whatever the algorithm's name says."""
    quantisation = {"quant_algo": "W8A16"}
    _tensorrt_llm(large.root / "8b", 1, quantization=quantisation)
    assert "trtllm-build quantises its 16-bit weights" in _plan(large).notes[1]


def test_a_division_that_the_project_does_not_ask_for(large: Sandbox) -> None:
    """The sizes that would fit are in the remedy."""
    _tensorrt_llm(large.root / "8b", 2)
    with pytest.raises(ConfigurationError, match="is split for tp_size 2 and pp_size 1") as caught:
        _plan(large)
    assert "engine.tp_size: 2" in caught.value.remedy


def test_a_rank_that_is_missing(large: Sandbox) -> None:
    """Named."""
    _tensorrt_llm(large.root / "8b", 2)
    (large.root / "8b" / "rank1.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"rank1\.safetensors is missing"):
        _plan(large, tp_size=2)


def test_encoders(sandbox: Sandbox) -> None:
    """The same bytes, the head that the export drops left out."""
    folder = headers.write_encoder(sandbox.root / "bert", headers.BERT_BASE)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {"cls.decoder.weight": ("F16", (9, 9))}
    for name, shape in headers.bert_shapes(headers.BERT_BASE).items():
        if ".layer." in name and name.endswith("dense.weight"):
            module = name.removesuffix(".weight")
            tensors |= {f"{module}.{n}": leaf for n, leaf in layouts.nf4(*shape).items()}
        else:
            tensors[name] = ("F16", shape)
    stored = layouts.write_tensors(folder / "model.safetensors", tensors) - 2 * 9 * 9
    config = headers.BERT_BASE | {"quantization_config": {"quant_method": "bitsandbytes"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    sandbox.data["models"]["speller"] |= {"task": "tensors", "checkpoint": "bert"}
    sandbox.engine.update(builder="onnxruntime", precision="int8", max_seq_len=128, options={})
    plan = plan_model(sandbox.load(), "speller")
    assert (plan.parameters, plan.weights) == (109_482_240, stored)
    assert "already quantised (bitsandbytes" in plan.notes[0]


def test_the_command(large: Sandbox, cli: Cli) -> None:
    """Notes stand below the tables, and in the JSON; that no builder takes it is an error."""
    stored = _write(large, layouts.hqq, {"quant_method": "hqq"})
    large.load()
    done = cli("plan", "--gpus", "H100")
    assert done.returncode == 5
    assert "its weights are quantised already (hqq)" in done.stderr
    assert "unknown" in done.stdout
    assert "speller: the checkpoint is already quantised (hqq)" in " ".join(done.stderr.split())
    (model,) = json.loads(cli("plan", "--gpus", "H100", "--json").stdout)["models"]
    assert (model["weights_bytes"], model["parameters"]) == (stored, None)
    assert len(model["notes"]) == 2
