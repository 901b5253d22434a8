# SPDX-License-Identifier: Apache-2.0
"""The arguments of LLM() and its configuration classes, which are pydantic models in reality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._table import TABLE, arguments, present, problem, problem_of_object, since

TRT_ARGS = arguments("engine")
TORCH_ARGS = arguments("pytorch")
_KINDS = [kind for kind in TABLE["speculation"]["kinds"] if present(kind)]


class StrictModel:
    """A pydantic model that forbids extra fields; its ValidationError is a ValueError."""

    DEFAULTS: dict[str, Any] = {}

    def __init__(self, **values: Any) -> None:
        name = type(self).__name__
        found = problem_of_object(name, TABLE["classes"][name], values, name)
        if found:
            raise ValueError(found)
        for field in TABLE["classes"][name]:
            setattr(self, field, values.get(field, self.DEFAULTS.get(field)))


class KvCacheConfig(StrictModel):
    """As in tensorrt_llm.llmapi."""

    DEFAULTS = {
        "enable_block_reuse": True,
        "free_gpu_memory_fraction": 0.9,
        "dtype": "auto",
        "tokens_per_block": 32,
    }
    enable_block_reuse: bool
    max_tokens: int | None
    tokens_per_block: int


class LoraConfig(StrictModel):
    """Adapters that the PyTorch runtime prepares for; its own module moved, this name stayed."""

    DEFAULTS = {"lora_dir": [], "max_lora_rank": 64, "lora_target_modules": []}
    lora_dir: list[str]
    max_lora_rank: int
    lora_target_modules: list[str]


class DecodingConfig:
    """What every kind of speculative decoding is made into."""

    def __init__(self, kind: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        shared = TABLE["speculation"]
        later = kind.get("fields_since", {}).items()
        names = [
            *kind.get("fields", ()),
            *(name for at, more in later if since(at) for name in more),
        ]
        fields = {**shared["common"], **{name: shared["fields"][name] for name in names}}
        found = problem_of_object(kind["name"], fields, values, kind["name"])
        if found:
            raise ValueError(found)
        for name, other in shared["same"].items():
            if name in values and other in values:
                raise ValueError(f"{kind['name']}.{other}: Extra inputs are not permitted")
        for name in kind.get("needs", ()):
            same = [name, *(one for one, other in shared["same"].items() if other == name)]
            if not any(values.get(one) for one in same):
                raise ValueError(f"{name} is required for {kind['name']}")
        self.decoding_type = kind["name"]
        self.values = dict(values)

    def check_backend(self, backend: str | None) -> None:
        """Each kind knows which runtimes can."""
        kind = next(one for one in _KINDS if one["name"] == self.decoding_type)
        if kind.get("runtime", "pytorch") != (backend or "engine"):
            raise ValueError(
                f"Speculation type {self.decoding_type} does not support backend {backend}"
            )


def _make(data: Mapping[str, Any]) -> DecodingConfig:
    name = data.get("decoding_type")
    kind = next((one for one in _KINDS if one["name"] == name), None)
    if kind is None:
        raise ValueError(f"Invalid decoding type: {name}")
    return DecodingConfig(
        kind, {key: value for key, value in data.items() if key != "decoding_type"}
    )


class DecodingBaseConfig:
    """Makes the configuration of a kind; since 1.3 LLM() does so itself."""

    if not since("1.3.0rc0"):

        @classmethod
        def from_dict(cls, data: dict[str, Any]) -> DecodingConfig:
            """Choose the class by the tag."""
            return _make(data)


def check_llm_arguments(given: Mapping[str, Any], backend: str | None) -> None:
    """What the real class of arguments refuses."""
    for name, value in given.items():
        if name == "speculative_config" and value is not None:
            _check_speculation(value, backend)
        else:
            found = problem(name, TABLE["llm"][name], value)
            if found:
                raise ValueError(found)
    _check_graphs(given.get("cuda_graph_config") or {})


def _check_speculation(value: Any, backend: str | None) -> None:
    if isinstance(value, dict) and since("1.3.0rc0"):
        value = _make(value)
    if not isinstance(value, DecodingConfig):
        # decoding_type is a class variable of every member of the union.
        raise ValueError("speculative_config: decoding_type: Extra inputs are not permitted")
    value.check_backend(backend)


def _check_graphs(graphs: Mapping[str, Any]) -> None:
    sizes, largest = graphs.get("batch_sizes"), graphs.get("max_batch_size")
    if not sizes or not largest:
        return
    if since("1.3.0rc0"):
        if max(sizes) != largest:
            raise ValueError("max_batch_size must equal max(batch_sizes).")
    elif sorted(sizes) != generated_sizes(largest, graphs.get("enable_padding", False)):
        raise ValueError("Please don't set both batch_sizes and max_batch_size.")


def generated_sizes(largest: int, padding: bool) -> list[int]:
    """The sizes for which graphs are made unless they are given."""
    sizes = {1, 2, 4} | {8 * i for i in range(1, 17)} if padding else {*range(1, 33), 64, 128}
    power = 256
    while power < largest:
        sizes.add(power)
        power *= 2
    return sorted({size for size in sizes if size < largest} | {largest})
