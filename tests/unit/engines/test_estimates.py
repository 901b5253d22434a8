# SPDX-License-Identifier: Apache-2.0
"""Estimates against what is published of known models, and against their own definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import headers
from tritonctl.engines.estimates.checkpoints import (
    CheckpointTensor,
    DecoderSizes,
    read_decoder_sizes,
    read_tensors,
)
from tritonctl.engines.estimates.decoders import (
    DecoderRoom,
    MemoryDemand,
    activation_bytes,
    kv_bytes_per_token,
    tensor_bytes,
    weight_bytes,
)
from tritonctl.engines.estimates.table import Storage, estimate_table
from tritonctl.errors import ConfigurationError

# Parameters as the models' own pages (safetensors metadata) give them.
PUBLISHED = {
    "LLAMA_2_7B": 6_738_415_616,
    "LLAMA_3_8B": 8_030_261_248,
    "LLAMA_3_70B": 70_553_706_496,
    "QWEN2_5_HALF_B": 494_032_768,
    "MIXTRAL_8X7B": 46_702_792_704,
}
TABLE = estimate_table()


def _storage(builder: str, precision: str) -> Storage:
    return TABLE.builders[builder].precisions[precision]


def _checkpoint(tmp_path: Path, config: dict[str, Any] = headers.LLAMA_3_8B) -> Path:
    return headers.write_checkpoint(tmp_path / "checkpoint", config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(tmp_path: Path, name: str) -> None:
    """7B to 70B, tied embeddings and a mixture of experts; in one file or in several."""
    config = getattr(headers, name)
    for shards in (1, 3):
        folder = headers.write_checkpoint(tmp_path / f"{shards}", config, shards=shards)
        tensors = read_tensors(folder)
        found = weight_bytes(tensors, _storage("tensorrt_llm", "bf16"))
        assert found.parameters == PUBLISHED[name]
        assert found.total == 2 * PUBLISHED[name] == sum(t.stored_bytes for t in tensors)


def test_kinds(tmp_path: Path) -> None:
    """Routers, norms and biases stay as they are; experts are linear layers."""
    folder = _checkpoint(tmp_path, headers.MIXTRAL_8X7B)
    kinds = {t.name.removeprefix("model.layers.0."): t.kind for t in read_tensors(folder)}
    assert kinds["model.embed_tokens.weight"] == "embedding"
    assert kinds["lm_head.weight"] == "head"
    assert kinds["block_sparse_moe.gate.weight"] == "other"
    assert kinds["block_sparse_moe.experts.7.w2.weight"] == "linear"
    assert kinds["input_layernorm.weight"] == "other"
    assert CheckpointTensor("h.0.mlp.experts.gate_up_proj", "BF16", (8, 64, 32), 0).kind == "linear"
    assert CheckpointTensor("lm_head.bias", "BF16", (32,), 0).kind == "other"


SCALES = [
    # 4 x 128 weights: by hand, from what each format keeps.
    ("openvino", "fp32", 512 * 4),
    ("openvino", "int8", 512 + 4 * 3),
    ("openvino", "int4", 256 + 4 * 2 * 2.5),
    ("tensorrt_llm", "fp8", 512 + 8),
    ("tensorrt_llm", "int8_sq", 512 + 4 * 4 + 128 * 2 + 4),
    ("tensorrt_llm", "int8_wo", 512 + 4 * 4),
    ("tensorrt_llm", "int4_awq", 256 + 4 * 4 + 128 * 2),
    ("tensorrt_llm", "w4a8_awq", 256 + 4 * 4 + 128 * 2 + 8),
    ("tensorrt_llm", "nvfp4", 256 + 4 * 8 + 8),
]


@pytest.mark.parametrize(("builder", "precision", "size"), SCALES)
def test_scales_of_a_linear_layer(builder: str, precision: str, size: float) -> None:
    """Beside the weights themselves; two stacked experts keep twice as much."""
    storage = _storage(builder, precision)
    assert tensor_bytes(CheckpointTensor("x.weight", "F32", (4, 128), 2048), storage) == size
    assert tensor_bytes(CheckpointTensor("x.weight", "F32", (2, 4, 128), 4096), storage) == 2 * size


def test_groups_that_do_not_divide() -> None:
    """The last group of a row is a group, too."""
    storage = _storage("openvino", "int4")
    assert (
        tensor_bytes(CheckpointTensor("x.weight", "F32", (2, 65), 520), storage) == 65 + 2 * 2 * 2.5
    )


def test_ratio_of_int4(tmp_path: Path) -> None:
    """Half of the linear layers in INT4: half-way between the two precisions, all else equal."""
    tensors = read_tensors(_checkpoint(tmp_path))
    int4, int8 = _storage("openvino", "int4"), _storage("openvino", "int8")
    low, high = weight_bytes(tensors, int4), weight_bytes(tensors, int8)
    half = weight_bytes(tensors, int4, ratio=0.5, other_storage=int8)
    assert half.linear == pytest.approx((low.linear + high.linear) / 2, abs=1)
    assert half.embedding == low.embedding == high.embedding
    assert weight_bytes(tensors, int4, ratio=1.0, other_storage=int8) == low


def test_parallel_weights(tmp_path: Path) -> None:
    """Devices together hold at least the whole; one holds less than a share and the repeated."""
    tensors = read_tensors(_checkpoint(tmp_path))
    whole = weight_bytes(tensors, _storage("tensorrt_llm", "bf16"))
    assert whole.per_device(32, 1, 1) == whole.total
    assert whole.per_device(32, 4, 1) == whole.total / 4 + whole.other * 3 / 4
    assert whole.per_device(32, 1, 2) == whole.linear / 2 + whole.other / 2 + whole.head
    assert whole.per_device(32, 1, 3) > whole.per_device(33, 1, 3)  # 11 of 32 layers on one


KV = [
    # name, tp, pp, bytes per token in 16 bits: layers * kv_heads * 128 * 2 * 2.
    ("LLAMA_2_7B", 1, 1, 524_288),
    ("LLAMA_3_8B", 1, 1, 131_072),
    ("LLAMA_3_70B", 1, 1, 327_680),
    ("LLAMA_3_70B", 4, 2, 40_960),
    ("LLAMA_3_70B", 16, 1, 40_960),  # a head is never divided
    ("LLAMA_3_70B", 1, 3, 110_592),  # 27 of 80 layers on one
]


@pytest.mark.parametrize(("name", "tp", "pp", "size"), KV)
def test_kv_cache(tmp_path: Path, name: str, tp: int, pp: int, size: int) -> None:
    """Per token and device; half of it in 8 bits, and the scales that OpenVINO adds."""
    sizes = read_decoder_sizes(_checkpoint(tmp_path, getattr(headers, name)))
    assert kv_bytes_per_token(sizes, 16, 0, tp, pp) == size
    assert kv_bytes_per_token(sizes, 8, 0, tp, pp) == size / 2
    assert kv_bytes_per_token(sizes, 8, 8, tp, pp) == size / 2 * (128 + 8) / 128


def test_latent_attention() -> None:
    """DeepSeek-V2 (arXiv:2405.04434): 60 layers * (512 + 64) elements, whatever the heads."""
    sizes = DecoderSizes(60, 5120, 12288, 128, 128, 128, 102400, 163840, 512, 64)
    assert kv_bytes_per_token(sizes, 16) == 60 * 576 * 2


def test_activations(tmp_path: Path) -> None:
    """Of the widest point of a layer; a mixture counts the experts that a token meets."""
    dense = read_decoder_sizes(_checkpoint(tmp_path / "a"))
    assert activation_bytes(dense, 16, 100) == 100 * 2 * (2 * 4096 + 2 * 14336)
    assert activation_bytes(dense, 16, 100, tp_size=2) == 100 * 2 * (2 * 4096 + 14336)
    mixture = read_decoder_sizes(_checkpoint(tmp_path / "b", headers.MIXTRAL_8X7B))
    assert mixture.intermediate_size == 2 * 14336


@given(
    fixed=st.integers(0, 10**10),
    per_sequence=st.integers(0, 10**6),
    per_token=st.integers(1, 10**6),
    block=st.sampled_from([1, 32, 64]),
    usable=st.integers(0, 10**12),
    fraction=st.sampled_from([0.5, 0.9, 1.0]),
    batch=st.integers(1, 512),
    length=st.integers(1, 10**5),
)
def test_the_largest_that_fits(
    fixed: int,
    per_sequence: int,
    per_token: int,
    block: int,
    usable: int,
    fraction: float,
    batch: int,
    length: int,
) -> None:
    """The answers fit and the next larger ones do not, whatever the sizes."""
    demand = MemoryDemand(fixed, 0, per_sequence, per_token, block)
    room = DecoderRoom(usable, fraction)

    def fits(sequences: int, tokens: int) -> bool:
        return room.fits(demand, sequences, sequences * demand.round_to_blocks(tokens))

    most = room.largest_batch(demand, length)
    # One off either way at a tie: the bound is solved for, not searched.
    assert most <= 1 or fits(most - 1, length)
    assert not fits(most + 2, length)
    longest = room.max_length(demand, batch)
    assert longest <= block or fits(batch, longest - block)
    assert not fits(batch, longest + 2 * block)
    assert longest % block == 0


DAMAGE: list[tuple[str, bytes, str]] = [
    ("model.safetensors", b"", "header cannot be read"),
    ("model.safetensors", b"\xff" * 64, "header cannot be read"),
    ("model.safetensors", b"\x02\0\0\0\0\0\0\0[]", "header cannot be read"),
    ("model.safetensors", b'\x0a\0\0\0\0\0\0\0{"w": {}}  ', "header cannot be read"),
    ("model.safetensors.index.json", b"{}", "has no weight_map"),
    ("model.safetensors.index.json", b'{"weight_map": {"w": "gone.safetensors"}}', "is missing"),
    ("config.json", b"[]", "is not a JSON object"),
    ("config.json", b"{", "cannot be read"),
    ("config.json", b'{"hidden_size": 8}', "has no num_attention_heads or n_head"),
]


@pytest.mark.parametrize(("name", "content", "words"), DAMAGE)
def test_damaged_checkpoints(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    """Named with the file, and what to do."""
    folder = _checkpoint(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_decoder_sizes(folder), read_tensors(folder)
    assert str(folder) in caught.value.problem
    assert caught.value.remedy


def test_no_weights(tmp_path: Path) -> None:
    """Pickles have no header to read."""
    folder = _checkpoint(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match=r"has no model\.safetensors"):
        read_tensors(folder)


def test_sizes_under_other_names(tmp_path: Path) -> None:
    """GPT-2's names, a nested text model, one key-value head for all."""
    file = tmp_path / "config.json"
    gpt2 = {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    file.write_text(json.dumps(gpt2), encoding="utf-8")
    assert read_decoder_sizes(tmp_path) == DecoderSizes(12, 768, 3072, 12, 12, 64, 50257, 1024)
    file.write_text(json.dumps({"text_config": gpt2 | {"multi_query": True}}), encoding="utf-8")
    assert read_decoder_sizes(tmp_path).num_key_value_heads == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema = ", "is malformed"),
        ('schema = "x"', "`schema`: expected 'tritonctl.estimates/1', got `x`"),
    ],
)
def test_a_malformed_table(tmp_path: Path, text: str, words: str) -> None:
    """A project's own figures are read as strictly as the shipped ones."""
    (tmp_path / "builders").mkdir()
    (tmp_path / "builders" / "estimates.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=words):
        estimate_table(tmp_path)
