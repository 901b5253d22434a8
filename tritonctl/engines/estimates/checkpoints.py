# SPDX-License-Identifier: Apache-2.0
"""Sizes and tensors of a checkpoint, from `config.json` and the headers of its safetensors.

Reading only headers takes milliseconds and works while the weights are still downloading. The
builder checks whether they are complete.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tritonctl.engines.estimates.pickled import read_pickled
from tritonctl.errors import ConfigurationError
from tritonctl.host import bundled
from tritonctl.host.files import read_object

# Builders read the same file.
_CONFIG_SIZES = "builders/shared/buildlib/config_sizes.json"

_LENGTH_BYTES = 8
# The limit of the safetensors format.
_MAX_HEADER_BYTES = 100_000_000
_MAX_SIZE = 1 << 40  # of a dimension or a length in config.json
_WEIGHTS, _PICKLE = "model.safetensors", "pytorch_model.bin"
SAFETENSORS = (_WEIGHTS, f"{_WEIGHTS}.index.json")
_DOWNLOAD_AGAIN = "download the checkpoint again and let it finish"

Kind = Literal["linear", "embedding", "head", "other"]
# Module names of transformers; one part of a tensor's dotted name must be equal.
_EMBEDDINGS = {"embed_tokens", "wte", "wpe", "embed_in", "word_embeddings", "embed_positions"}
_EMBEDDINGS |= {"vocab_embedding", "position_embedding"}  # TensorRT-LLM's
_HEADS = {"lm_head", "embed_out", "output_embeddings"}
# No builder quantises routers.
_ROUTERS = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "router.weight")
_MATRIX, _STACK = 2, 3


@dataclass(frozen=True)
class CheckpointTensor:
    """A tensor of a checkpoint, from the header of its file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored_bytes: int
    role: Kind | None = None  # overrides the kind derived from the name

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def kind(self) -> Kind:
        """The tensor's part in the model; quantisation applies to `linear`."""
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
        """Output features; for a stack of experts, of all experts together."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Input features."""
        return self.shape[-1]


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a text-generation model that determine its memory. Lengths are tokens."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int | None
    # Multi-head latent attention (DeepSeek) keeps one compressed vector per token and layer.
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int = 0


def read_tensors(folder: Path, *, allow_pickle: bool = False) -> list[CheckpointTensor]:
    """Return every tensor of a checkpoint folder. Raises ConfigurationError.

    `allow_pickle` permits PyTorch files where there are no safetensors.
    """
    if files := _checkpoint_files(folder, _WEIGHTS):
        return [tensor for file in files for tensor in _read_header(file)]
    if allow_pickle and (files := _checkpoint_files(folder, _PICKLE)):
        entries = [item for file in files for item in read_pickled(file).items()]
        return [CheckpointTensor(name, *header) for name, header in entries]
    raise ConfigurationError(
        f"{folder} has no model.safetensors and no model.safetensors.index.json",
        remedy="plans need safetensors: save the model in this format, or correct `checkpoint:`",
    )


def read_ranks(folder: Path, count: int) -> list[list[CheckpointTensor]]:
    """Return the tensors of each rank of a TensorRT-LLM checkpoint. Raises ConfigurationError."""
    files = [folder / f"rank{rank}.safetensors" for rank in range(count)]
    return [[_fix_trtllm_role(tensor) for tensor in _read_header(file)] for file in files]


def _fix_trtllm_role(tensor: CheckpointTensor) -> CheckpointTensor:
    # TensorRT-LLM's router is `mlp.router`; its `mlp.gate` is one half of a gated MLP.
    is_gate = tensor.name.endswith("mlp.gate.weight")
    return replace(tensor, role="linear") if is_gate else tensor


def _checkpoint_files(folder: Path, name: str) -> list[Path]:
    """Return the files in the index of that file, or the file alone; [] without either."""
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return [folder / name] if (folder / name).is_file() else []
    names = json_object(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ConfigurationError(f"{index} has no weight_map", remedy=_DOWNLOAD_AGAIN)
    return [folder / name for name in sorted(set(names.values()))]


def _read_header(file: Path) -> Iterator[CheckpointTensor]:
    """Yield the tensors in a safetensors header.

    Format (https://github.com/huggingface/safetensors#format): an 8-byte little-endian length,
    that many bytes of JSON, then the data, which is not read. Raises ConfigurationError.
    """
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            text = stream.read(length) if length <= _MAX_HEADER_BYTES else b""
        for name, entry in json.loads(text).items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                yield CheckpointTensor(name, entry["dtype"], tuple(entry["shape"]), end - start)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{file} is missing, although the checkpoint lists it", remedy=_DOWNLOAD_AGAIN
        ) from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{file}: its safetensors header cannot be read ({type(error).__name__}: {error})",
            remedy=_DOWNLOAD_AGAIN,
        ) from error


def read_decoder_sizes(folder: Path) -> DecoderSizes:
    """Read the sizes of a text-generation model. Raises ConfigurationError naming a missing one."""
    config = json_object(folder / "config.json")
    text_config = config.get("text_config")
    sizes = ConfigReader(
        folder / "config.json", text_config if isinstance(text_config, dict) else config
    )
    hidden = sizes.require("hidden_size")
    heads = sizes.require("num_attention_heads")
    text = sizes.config
    one_key = text.get("multi_query") is True and not text.get("new_decoder_architecture")
    return DecoderSizes(
        num_hidden_layers=sizes.require("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=_active_mlp_width(sizes, hidden),
        num_attention_heads=heads,
        num_key_value_heads=1 if one_key else sizes.get("num_key_value_heads") or heads,
        head_dim=sizes.get("head_dim") or hidden // heads,
        vocab_size=sizes.require("vocab_size"),
        max_position_embeddings=sizes.get("max_position_embeddings")
        or _config_sizes()["trained_positions"].get((config.get("architectures") or [""])[0]),
        kv_lora_rank=sizes.get("kv_lora_rank"),
        qk_rope_head_dim=sizes.get("qk_rope_head_dim") or 0,
    )


def _active_mlp_width(sizes: ConfigReader, hidden: int) -> int:
    """Return the MLP features that process one token; for a mixture, of its active experts."""
    experts = sizes.get("num_experts_per_tok")
    dense = sizes.get("intermediate_size") or 4 * hidden
    if experts is None:
        return dense
    return experts * (sizes.get("moe_intermediate_size") or dense)


@dataclass(frozen=True)
class ConfigReader:
    """Reads integers of a config.json; config_sizes.json lists the keys of each."""

    file: Path
    config: dict[str, Any]

    def get(self, name: str) -> int | None:
        """Return the first integer among the keys of `name`, or None.

        Raises ConfigurationError for one that is no size.
        """
        for key in _config_keys(name):
            value = self.config.get(key)
            if isinstance(value, int) and not isinstance(value, bool):
                self._require_range(key, value, 0)
                return value
        return None

    def require(self, name: str) -> int:
        """Return the first integer among the keys. Raises ConfigurationError without one."""
        value = self.get(name)
        if value is None:
            raise ConfigurationError(
                f"{self.file} has no {' or '.join(_config_keys(name))}",
                remedy="plans need the model's sizes: use its complete config.json",
            )
        self._require_range(name, value, 1)
        return value

    def _require_range(self, name: str, value: int, minimum: int) -> None:
        if not minimum <= value <= _MAX_SIZE:
            raise ConfigurationError(
                f"{self.file}: {name} is {value:.6g}, and no model has such a size",
                remedy=_DOWNLOAD_AGAIN,
            )


def _config_keys(name: str) -> list[str]:
    """Return the keys under which config.json has a size, in order."""
    keys: list[str] = _config_sizes()["keys"].get(name, [name])
    return keys


def offset_positions() -> tuple[str, ...]:
    """Return the starts of classes that number positions from the padding id on."""
    return tuple(_config_sizes()["offset_positions"])


@cache
def _config_sizes() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(bundled.text(_CONFIG_SIZES))
    return table


def json_object(file: Path) -> dict[str, Any]:
    """Read a JSON object from a checkpoint's file. Raises ConfigurationError."""
    return read_object(file, remedy=_DOWNLOAD_AGAIN)
