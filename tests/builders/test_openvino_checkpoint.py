# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints and limits the OpenVINO builder refuses, before any heavy work."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

Refusal = Callable[[Callable[[], object]], str]


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes the key."""
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    new = {name: value for name, value in {**old, **changes}.items() if value is not None}
    path.write_text(json.dumps(new), encoding="utf-8")


def inspect(builder: SimpleNamespace, folder: Path) -> Any:
    support = builder.support
    supported = (
        *("openvino", support.ARCHITECTURES, support.ROPE_TYPES),
        *(support.REFUSAL_REASONS, support.REFUSED_SETTINGS),
    )
    return builder.checkpoint.inspect_checkpoint(
        folder, builder.checkpoint.SupportedModels(*supported)
    )


def test_facts_of_a_good_checkpoint(builder: SimpleNamespace, checkpoint: Path) -> None:
    facts = inspect(builder, checkpoint).to_result()
    assert facts == {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 8,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_ids": (2,),
        "pad_token_id": None,
    }


def test_generation_config_wins(builder: SimpleNamespace, checkpoint: Path) -> None:
    edit(checkpoint / "generation_config.json", eos_token_id=[4, 2], pad_token_id=0)
    facts = inspect(builder, checkpoint)
    assert facts.eos_token_ids == (4, 2)
    assert facts.pad_token_id == 0


def test_names_of_gpt2(builder: SimpleNamespace, checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()
    gpt2 = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 8, "eos_token_id": 2}
    edit(checkpoint / "config.json", n_embd=16, n_layer=3, n_head=4, n_positions=32, **gpt2)
    facts = inspect(builder, checkpoint)
    assert (facts.num_hidden_layers, facts.num_key_value_heads) == (3, 4)
    assert (facts.head_dim, facts.max_position_embeddings) == (4, 32)


FALCON_7B = {"multi_query": True, "num_kv_heads": 71, "alibi": False}
FALCON_40B = {"new_decoder_architecture": True, "num_kv_heads": 2, "multi_query": True}


@pytest.mark.parametrize(("settings", "heads"), [(FALCON_7B, 1), (FALCON_40B, 2)])
def test_key_heads_of_falcon(
    builder: SimpleNamespace, checkpoint: Path, settings: dict[str, Any], heads: int
) -> None:
    """As transformers counts them, which ignores `num_kv_heads` of the older architecture."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    del config["num_key_value_heads"]
    config |= {"architectures": ["FalconForCausalLM"], **settings}
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert inspect(builder, checkpoint).num_key_value_heads == heads


def test_falcon_with_position_biases(
    builder: SimpleNamespace, checkpoint: Path, refusal: Refusal
) -> None:
    """They are lost in the exported graph: refused by the setting, not by the class."""
    edit(checkpoint / "config.json", architectures=["FalconForCausalLM"], alibi=True)
    said = refusal(lambda: inspect(builder, checkpoint))
    assert "config.json: alibi is True; the openvino builder does not support Falcon" in said


def test_sizes_of_bloom(builder: SimpleNamespace, checkpoint: Path) -> None:
    """Its config.json has names of its own, and no limit of positions: it was trained on 2048."""
    (checkpoint / "config.json").unlink()
    bloom = {"architectures": ["BloomForCausalLM"], "vocab_size": 8, "eos_token_id": 2}
    edit(checkpoint / "config.json", n_embed=16, n_layer=3, num_attention_heads=4, **bloom)
    facts = inspect(builder, checkpoint)
    assert (facts.num_hidden_layers, facts.head_dim) == (3, 4)
    assert facts.max_position_embeddings == 2048


def lfs(folder: Path, name: str) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / name).write_text(text, encoding="utf-8")


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def sharded(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00003.safetensors")
    shards = {f"w{n}": f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)}
    edit(folder / "model.safetensors.index.json", weight_map=shards)


def adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


BROKEN: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no config": (lambda f: (f / "config.json").unlink(), ["has no config.json"]),
    "an adapter": (adapter, ["holds an adapter", "merge_and_unload"]),
    "config not JSON": (
        lambda f: (f / "config.json").write_text('{\n "a": }', encoding="utf-8"),
        ["config.json:2:7", "not valid JSON"],
    ),
    "config a list": (
        lambda f: (f / "config.json").write_text("[]", encoding="utf-8"),
        ["config.json", "found a list"],
    ),
    "config not UTF-8": (lambda f: (f / "config.json").write_bytes(b"\xff"), ["is not UTF-8"]),
    "no architecture": (
        lambda f: edit(f / "config.json", architectures=[]),
        ["config.json", "names no architectures"],
    ),
    "unknown architecture": (
        lambda f: edit(f / "config.json", architectures=["LlamaForCausalML"]),
        ["LlamaForCausalML (did you mean LlamaForCausalLM?)", "Qwen3ForCausalLM"],
    ),
    "quantised by ModelOpt": (
        lambda f: (f / "hf_quant_config.json").write_text("{}", encoding="utf-8"),
        ["quantised already (modelopt)", "tritonctl plan"],
    ),
    "for TensorRT-LLM": (
        lambda f: (f / "rank0.safetensors").touch(),
        ["quantised already (a TensorRT-LLM checkpoint)"],
    ),
    "quantised": (
        lambda f: edit(f / "config.json", quantization_config={"quant_method": "gptq"}),
        ["quantised already (gptq)"],
    ),
    "longrope": (
        lambda f: edit(f / "config.json", rope_scaling={"type": "longrope"}),
        ["'longrope'", "the openvino builder does not support it"],
    ),
    "no vocab_size": (lambda f: edit(f / "config.json", vocab_size=None), ["vocab_size is miss"]),
    "no end token": (
        lambda f: edit(f / "config.json", eos_token_id=None),
        ["neither generation_config.json nor config.json has an eos_token_id"],
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ["has no weights"]),
    "pickled weights": (
        pickled,
        ["pickles only (pytorch_model.bin)", "safetensors", "engine.allow_pickle to true"],
    ),
    "shards missing": (
        sharded,
        ["lists 3 files, of which 2 are missing", "model-00002-of-00003.safetensors"],
    ),
    "index empty": (
        lambda f: edit(f / "model.safetensors.index.json", weight_map={}),
        ["has no weight_map"],
    ),
    "cut in the data": (
        lambda f: truncate(f / "model.safetensors", -3),
        ["is half-downloaded", "bytes are there"],
    ),
    "cut in the header": (
        lambda f: truncate(f / "model.safetensors", 20),
        ["is half-downloaded: it ends inside its header, at 20 bytes"],
    ),
    "cut in the length": (
        lambda f: truncate(f / "model.safetensors", 5),
        ["is half-downloaded: it ends inside its header, at 5 bytes"],
    ),
    "empty weights": (lambda f: truncate(f / "model.safetensors", 0), ["is half-downloaded"]),
    "weights too long": (
        lambda f: append(f / "model.safetensors"),
        ["is damaged"],
    ),
    "not safetensors": (
        lambda f: (f / "model.safetensors").write_bytes(b"<!DOCTYPE html><html></html>"),
        ["is not a safetensors file"],
    ),
    "header damaged": (
        lambda f: (f / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{["),
        ["header is damaged"],
    ),
    "weights a pointer": (
        lambda f: lfs(f, "model.safetensors"),
        ["model.safetensors: is a git-lfs pointer", "lfs pull"],
    ),
    "tokenizer a pointer": (lambda f: lfs(f, "tokenizer.json"), ["is a git-lfs pointer"]),
    "no tokenizer": (
        lambda f: (f / "tokenizer.json").unlink(),
        ["has no tokenizer.json", "use_fast=True"],
    ),
    "no tokenizer config": (
        lambda f: (f / "tokenizer_config.json").unlink(),
        ["has no tokenizer_config.json"],
    ),
    "tokenizer not JSON": (
        lambda f: (f / "tokenizer.json").write_text("x", encoding="utf-8"),
        ["tokenizer.json:1:1", "not valid JSON"],
    ),
    "tokenizer too big": (
        lambda f: edit(f / "tokenizer.json", added_tokens=[{"id": 8}]),
        ["token ids up to 8, and the model knows 8"],
    ),
    "unigram too big": (
        lambda f: edit(f / "tokenizer.json", model={"vocab": [["x", 0.0]] * 12}),
        ["token ids up to 11"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_checkpoint_is_refused(
    builder: SimpleNamespace, refusal: Refusal, checkpoint: Path, name: str
) -> None:
    break_it, expected = BROKEN[name]
    break_it(checkpoint)
    text = refusal(lambda: inspect(builder, checkpoint))
    for part in expected:
        assert part in text


def test_a_missing_folder_is_refused(
    builder: SimpleNamespace, refusal: Refusal, tmp_path: Path
) -> None:
    call = lambda: inspect(builder, tmp_path / "nowhere")  # noqa: E731
    assert "nowhere does not exist" in refusal(call)


def resolved(builder: SimpleNamespace, checkpoint: Path, **limits: int) -> Any:
    facts = inspect(builder, checkpoint)
    asked = builder.request_types.RequestedLimits(**{"max_batch_size": 4, **limits})
    return builder.limits.resolve_limits(asked, facts, default_max_num_tokens=256)


def test_limits_follow_the_checkpoint(builder: SimpleNamespace, checkpoint: Path) -> None:
    limits = resolved(builder, checkpoint)
    assert (limits.max_seq_len, limits.max_input_len, limits.max_num_tokens) == (64, 63, 256)
    limits = resolved(builder, checkpoint, max_seq_len=32, max_batch_size=400)
    assert (limits.max_seq_len, limits.max_input_len, limits.max_num_tokens) == (32, 31, 400)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_seq_len": 65}, "trained for 64 tokens (max_position_embeddings)"),
        ({"max_seq_len": 32, "max_input_len": 32}, "no room is left"),
        ({"max_seq_len": 1}, "no room is left"),
        ({"max_num_tokens": 3}, "below a max_batch_size of 4"),
        ({"max_batch_size": 0}, "engine.max_batch_size is 0"),
    ],
)
def test_limits_that_cannot_be(
    builder: SimpleNamespace,
    refusal: Refusal,
    checkpoint: Path,
    limits: dict[str, int],
    expected: str,
) -> None:
    text = refusal(lambda: resolved(builder, checkpoint, **limits))
    assert expected in text


def test_pickles_that_are_allowed(builder: SimpleNamespace, checkpoint: Path) -> None:
    """Of one file or of several; safetensors are preferred, and checked, where there are both."""
    check = builder.weights.check_weights
    pickled(checkpoint)
    check(checkpoint, allow_pickle=True)
    whole = (checkpoint / "pytorch_model.bin").rename(checkpoint / "pytorch_model-1-of-1.bin")
    index = {"weight_map": {"lm_head.weight": whole.name}}
    edit(checkpoint / "pytorch_model.bin.index.json", **index)
    check(checkpoint, allow_pickle=True)


def test_pickles_that_would_not_be_read(
    builder: SimpleNamespace, checkpoint: Path, refusal: Refusal
) -> None:
    """A part that is missing, git-lfs's pointers, names that transformers does not know."""

    def said() -> str:
        return refusal(lambda: builder.weights.check_weights(checkpoint, allow_pickle=True))

    index = {"weight_map": {"lm_head.weight": "pytorch_model-1-of-1.bin"}}
    (checkpoint / "model.safetensors").unlink()
    edit(checkpoint / "pytorch_model.bin.index.json", **index)
    assert "of which 1 are missing" in said()
    lfs(checkpoint, "pytorch_model-1-of-1.bin")
    assert "is a git-lfs pointer" in said()
    (checkpoint / "pytorch_model.bin.index.json").unlink()
    assert "pickles only (pytorch_model-1-of-1.bin)" in said()


def test_files_of_any_content(builder: SimpleNamespace, checkpoint: Path) -> None:
    """A value of another type, and JSON that is too deep: refused in words, never a traceback."""
    values: list[Any] = ["x", [], {}, 0, -1, 1.5, True, 10**30, [1, "a"], {"a": 1}, [{"id": "x"}]]
    values += [{"type": "Sequence", "decoders": 7}, {"vocab": {"a": "b"}}, {"vocab": 7}]
    refused = 0
    for name in ("config.json", "tokenizer.json"):
        file = checkpoint / name
        good = file.read_text(encoding="utf-8")
        for key in (*json.loads(good), "rope_scaling", "added_tokens", "decoder"):
            for value in values:
                edit(file, **{key: value})
                try:
                    inspect(builder, checkpoint)
                except builder.problems.BuildError:
                    refused += 1
                file.write_text(good, encoding="utf-8")
        file.write_text("[" * 100_000, encoding="utf-8")
        with pytest.raises(builder.problems.BuildError, match="nested too deeply"):
            inspect(builder, checkpoint)
        file.write_text(good, encoding="utf-8")
    assert refused > 50


def test_a_compressed_pickle(builder: SimpleNamespace, checkpoint: Path) -> None:
    """PyTorch stores its records; what is compressed may become any size."""
    (checkpoint / "model.safetensors").unlink()
    with zipfile.ZipFile(checkpoint / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    with pytest.raises(builder.problems.BuildError, match=r"data\.pkl is compressed"):
        builder.checkpoint.inspect_checkpoint(
            checkpoint,
            builder.checkpoint.SupportedModels(
                "openvino", builder.support.ARCHITECTURES, builder.support.ROPE_TYPES
            ),
            allow_pickle=True,
        )
