# SPDX-License-Identifier: Apache-2.0
"""The OpenVINO builder's modules, and a checkpoint that passes its checks."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BUILDER = Path(__file__).resolve().parents[2] / "builders" / "openvino"
MODULES = ("problems", "precisions", "request", "weights", "checkpoint", "prompts", "compare")
VOCABULARY = {"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

Refusal = Callable[[Callable[[], object]], str]


@pytest.fixture(scope="module")
def builder() -> Iterator[SimpleNamespace]:
    """The builder's modules as build.py sees them, and gone again afterwards."""
    hidden = {name: sys.modules.pop(name, None) for name in MODULES}
    sys.path.insert(0, str(BUILDER))
    loaded: dict[str, ModuleType] = {name: importlib.import_module(name) for name in MODULES}
    yield SimpleNamespace(**loaded)
    sys.path.remove(str(BUILDER))
    for name, module in hidden.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module


def safetensors(path: Path, data: bytes = b"\0" * 8) -> None:
    """Write a whole safetensors file with one tensor."""
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "w": {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [0, len(data)]},
        }
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint that passes every check."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    safetensors(folder / "model.safetensors")
    added = [{"id": 2, "content": "</s>"}]
    tokenizer = {"model": {"vocab": VOCABULARY}, "added_tokens": added}
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return folder


@pytest.fixture
def refusal(builder: SimpleNamespace) -> Refusal:
    """Problem and remedy, as the user reads them, of a call that must refuse."""

    def read(call: Callable[[], object]) -> str:
        with pytest.raises(builder.problems.BuildError) as caught:
            call()
        assert caught.value.remedy.endswith(".")
        return f"{caught.value.problem}\n{caught.value.remedy}"

    return read
