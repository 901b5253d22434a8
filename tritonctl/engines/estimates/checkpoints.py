# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says of itself: `config.json` and the headers of its safetensors.

Nothing but headers is read, so that a plan costs milliseconds and works while the weights are
still on their way. Whether they are whole is the builder's to check.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tritonctl.engines.estimates.pickled import read_pickled
from tritonctl.errors import ConfigurationError
from tritonctl.host.files import read_object

_LENGTH_BYTES = 8
# The limit of the safetensors format itself.
_LONGEST_HEADER = 100_000_000
_WEIGHTS, _PICKLE = "model.safetensors", "pytorch_model.bin"
SAFETENSORS = (_WEIGHTS, f"{_WEIGHTS}.index.json")
_DOWNLOAD_AGAIN = "download the checkpoint again and let it finish"

Kind = Literal["linear", "embedding", "head", "other"]
# By the names that transformers gives to modules; a part of the dotted name must be equal.
_EMBEDDINGS = {"embed_tokens", "wte", "wpe", "embed_in", "word_embeddings", "embed_positions"}
_EMBEDDINGS |= {"vocab_embedding", "position_embedding"}  # TensorRT-LLM's
_HEADS = {"lm_head", "embed_out", "output_embeddings"}
# Kept unquantised by every builder: a router decides, it does not compute.
_ROUTERS = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "router.weight")
_MATRIX, _STACK = 2, 3


@dataclass(frozen=True)
class Tensor:
    """A tensor of a checkpoint, as the header of its file describes it.

    `role`: its kind, where something better than its name shows it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: int  # bytes
    role: Kind | None = None

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def kind(self) -> Kind:
        """What part of a language model it is; `linear` is what quantisation is about."""
        if self.role is not None:
            return self.role
        parts = set(self.name.split("."))
        if parts & _EMBEDDINGS:
            return "embedding"
        if parts & _HEADS:
            return "head" if len(self.shape) == _MATRIX else "other"
        matrix = len(self.shape) in (_MATRIX, _STACK)
        return "linear" if matrix and not self.name.endswith(_ROUTERS) else "other"

    @property
    def rows(self) -> int:
        """Output features; of a stack of experts, those of all."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Input features."""
        return self.shape[-1]


@dataclass(frozen=True)
class Architecture:
    """The sizes in a `config.json` that memory depends on. Lengths are tokens."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int | None
    # Multi-head latent attention (DeepSeek) keeps one compressed vector a token and layer.
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int = 0


def read_tensors(folder: Path, *, allow_pickle: bool = False) -> list[Tensor]:
    """Every tensor of a checkpoint folder. Raises ConfigurationError.

    allow_pickle: without safetensors, of PyTorch files.
    """
    if files := _files(folder, _WEIGHTS):
        return [tensor for file in files for tensor in _header(file)]
    if allow_pickle and (files := _files(folder, _PICKLE)):
        described = [item for file in files for item in read_pickled(file).items()]
        return [Tensor(name, *rest) for name, rest in described]
    raise ConfigurationError(
        f"{folder} has no model.safetensors and no model.safetensors.index.json",
        remedy="plans are made from safetensors: save the model as such, or correct `checkpoint:`",
    )


def read_ranks(folder: Path, count: int) -> list[list[Tensor]]:
    """The tensors of each rank of a TensorRT-LLM checkpoint. Raises ConfigurationError."""
    files = [folder / f"rank{rank}.safetensors" for rank in range(count)]
    return [[_as_in_trtllm(tensor) for tensor in _header(file)] for file in files]


def _as_in_trtllm(tensor: Tensor) -> Tensor:
    # Its router is `mlp.router`; what transformers calls so is a half of a gated MLP there.
    gate = tensor.name.endswith("mlp.gate.weight")
    return replace(tensor, role="linear") if gate else tensor


def _files(folder: Path, name: str) -> list[Path]:
    """Those that the index of that file lists, or the file alone; [] without either."""
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return [folder / name] if (folder / name).is_file() else []
    names = json_object(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ConfigurationError(f"{index} has no weight_map", remedy=_DOWNLOAD_AGAIN)
    return [folder / name for name in sorted(set(names.values()))]


def _header(file: Path) -> Iterator[Tensor]:
    """The format (https://github.com/huggingface/safetensors#format): 8 bytes little-endian length,
    so many bytes of JSON, then the data, which is not read.
    """
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            text = stream.read(length) if length <= _LONGEST_HEADER else b""
        for name, entry in json.loads(text).items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                yield Tensor(name, entry["dtype"], tuple(entry["shape"]), end - start)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{file} is missing, the checkpoint is said to have it", remedy=_DOWNLOAD_AGAIN
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{file}: its safetensors header cannot be read ({type(error).__name__}: {error})",
            remedy=_DOWNLOAD_AGAIN,
        ) from error


def read_architecture(folder: Path) -> Architecture:
    """The sizes of a text-generation model. Raises ConfigurationError naming a missing one."""
    whole = json_object(folder / "config.json")
    nested = whole.get("text_config")
    sizes = Sizes(folder / "config.json", nested if isinstance(nested, dict) else whole)
    hidden = sizes.need("hidden_size", "n_embd", "d_model")
    heads = sizes.need("num_attention_heads", "n_head")
    alone = 1 if sizes.config.get("multi_query") else heads
    return Architecture(
        num_hidden_layers=sizes.need("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        intermediate_size=_working_width(sizes, hidden),
        num_attention_heads=heads,
        num_key_value_heads=sizes.get("num_key_value_heads") or alone,
        head_dim=sizes.get("head_dim", "head_size") or hidden // heads,
        vocab_size=sizes.need("vocab_size"),
        max_position_embeddings=sizes.get("max_position_embeddings", "n_positions"),
        kv_lora_rank=sizes.get("kv_lora_rank"),
        qk_rope_head_dim=sizes.get("qk_rope_head_dim") or 0,
    )


def _working_width(sizes: Sizes, hidden: int) -> int:
    """Features that one token passes through in an MLP: of a mixture, those of its experts."""
    experts = sizes.get("num_experts_per_tok")
    dense = sizes.get("intermediate_size", "n_inner", "ffn_hidden_size") or 4 * hidden
    if experts is None:
        return dense
    return experts * (sizes.get("moe_intermediate_size") or dense)


@dataclass(frozen=True)
class Sizes:
    """Reads whole numbers from a config that has them under one of several names."""

    file: Path
    config: dict[str, Any]

    def get(self, *names: str) -> int | None:
        """The first that is there."""
        return next((v for v in map(self.config.get, names) if isinstance(v, int)), None)

    def need(self, *names: str) -> int:
        """The same; one must be. Raises ConfigurationError."""
        value = self.get(*names)
        if value is None:
            raise ConfigurationError(
                f"{self.file} has no {' or '.join(names)}",
                remedy="plans are made from a model's sizes; take its whole config.json",
            )
        return value


def json_object(file: Path) -> dict[str, Any]:
    """A file of a checkpoint that holds one. Raises ConfigurationError."""
    return read_object(file, remedy=_DOWNLOAD_AGAIN)
