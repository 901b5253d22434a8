# SPDX-License-Identifier: Apache-2.0
"""The parameters of a composing model: from the project and the engine's manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tritonctl.engines.artefacts.manifest import Manifest
from tritonctl.errors import ConfigurationError, RepositoryError, choices
from tritonctl.project.compatibility import trtllm_arguments
from tritonctl.project.schema import Serving
from tritonctl.repository.backends import PythonBackend
from tritonctl.repository.engine_queue import bound_in_engine, most_under_way
from tritonctl.repository.native import NATIVE


def _kv_blocks(serving: Serving, manifest: Manifest) -> int | None:
    limits, block = manifest.result.limits, manifest.result.runtime.get("block_size")
    if not isinstance(block, int) or limits.max_seq_len is None:
        return None
    # Each sequence ends in its own block: round up per sequence, not in total.
    per_sequence = -(-limits.max_seq_len // block)
    if serving.kv_cache_tokens is None:
        return limits.max_batch_size * per_sequence
    return -(-_kv_cache_tokens(serving.kv_cache_tokens, limits.max_seq_len) // block)


def _kv_cache_tokens(tokens: int, max_seq_len: int | None) -> int:
    if tokens < (max_seq_len or 0):
        raise ConfigurationError(
            f"serving.kv_cache_tokens {tokens} holds not even one sequence of "
            f"max_seq_len {max_seq_len}",
            remedy=f"set it to {max_seq_len} or more, or leave it out",
        )
    return tokens


def _fact(manifest: Manifest, name: str) -> object:
    """A fact of a text generation model; None for an engine of another kind."""
    return getattr(manifest.result.model, name, None)


def _runtime(serving: Serving, manifest: Manifest, key: str) -> Any:
    """A setting of the engine's runtime: the project's, else what the builder recorded."""
    return serving.runtime.get(key, manifest.result.runtime.get(key))


def _kv_cache_config(serving: Serving, manifest: Manifest) -> dict[str, Any]:
    """TensorRT-LLM's KvCacheConfig: the artefact's, the project's, and the project's raw fields."""
    built = manifest.result.runtime.get("kv_cache_config") or {}
    # An engine without paged context attention cannot reuse blocks, whatever is the default here.
    reuse = serving.enable_prefix_caching and built.get("enable_block_reuse") is not False
    own: dict[str, Any] = {"enable_block_reuse": reuse}
    if serving.kv_cache_tokens is not None:
        longest = manifest.result.limits.max_seq_len
        own["max_tokens"] = _kv_cache_tokens(serving.kv_cache_tokens, longest)
    given = serving.runtime.get("kv_cache_config", {})
    _check_kv_cache_fields(given, manifest.result.versions.get("tensorrt_llm", ""))
    return {**built, **own, **given}


def _check_kv_cache_fields(given: Mapping[str, Any], version: str) -> None:
    known = trtllm_arguments.kv_cache_fields(version)
    for name in given:
        if name not in known:
            raise ConfigurationError(
                f"serving.runtime.kv_cache_config.{name} is not a field of KvCacheConfig"
                f"{f' in TensorRT-LLM {version}' if version else ''}",
                remedy=choices(name, known, "fields:"),
            )


def _max_num_tokens(_: Serving, manifest: Manifest) -> int:
    """The builder's, or what the project asks of a task that it leaves to serving."""
    built, asked = manifest.result.limits.max_num_tokens, manifest.request.limits.max_num_tokens
    return built or (asked if manifest.task != "tensors" else None) or 0


def _pad_to_multiple_of(serving: Serving, manifest: Manifest) -> int:
    """Triton's own backends join requests of one shape only: lengths are rounded up for them."""
    backend = serving.backend or manifest.python_backend
    return _NATIVE_MULTIPLE if backend in NATIVE else 1


_Parameter = Callable[[Serving, Manifest], object]

# Tokens; a text of 40 is then computed as one of 64, and shares its run with all from 33 to 64.
_NATIVE_MULTIPLE = 32

# What `serving.runtime` may set, of backends that have the parameter.
RUNTIME_SETTINGS = ("gather_generation_logits", "guided_decoding_backend", "kv_cache_config")

# Everything a backend may ask for under [parameters] in its backend.toml.
_PARAMETERS: dict[str, _Parameter] = {
    "max_seq_len": lambda _, manifest: manifest.result.limits.max_seq_len,
    "max_input_len": lambda _, manifest: manifest.result.limits.max_input_len,
    "max_num_seqs": lambda _, manifest: manifest.result.limits.max_batch_size,
    "max_num_batched_tokens": lambda _, manifest: manifest.result.limits.max_num_tokens,
    "num_kv_blocks": _kv_blocks,
    "block_size": lambda _, manifest: manifest.result.runtime.get("block_size"),
    "properties": lambda _, manifest: manifest.result.runtime.get("properties"),
    "enable_prefix_caching": lambda serving, _: serving.enable_prefix_caching,
    "max_queue_size": lambda serving, manifest: bound_in_engine(
        serving.queue, manifest.result.limits.max_batch_size
    ),
    "max_requests": lambda serving, manifest: most_under_way(
        serving.queue, manifest.result.limits.max_batch_size
    ),
    "eos_token_ids": lambda _, manifest: _fact(manifest, "eos_token_ids"),
    "vocab_size": lambda _, manifest: _fact(manifest, "vocab_size"),
    "world": lambda serving, manifest: _runtime(serving, manifest, "world"),
    "tensorrt_llm": lambda _, manifest: manifest.result.versions.get("tensorrt_llm", ""),
    "tp_size": lambda _, manifest: manifest.result.limits.tp_size,
    "pp_size": lambda _, manifest: manifest.result.limits.pp_size,
    "kv_cache_config": _kv_cache_config,
    "guided_decoding_backend": lambda serving, manifest: (
        _runtime(serving, manifest, "guided_decoding_backend") or ""
    ),
    "gather_generation_logits": lambda serving, manifest: bool(
        _runtime(serving, manifest, "gather_generation_logits")
    ),
    "lora_adapters": lambda _, manifest: manifest.result.runtime.get("lora_adapters") or {},
    "max_pixels": lambda serving, _: serving.max_image_pixels,
    "session": lambda serving, _: serving.session.model_dump(),
    "parallel_runs": lambda serving, _: serving.most_parallel_runs,
    "stream_interval_ms": lambda serving, _: serving.stream_interval_ms,
    "longest_sequence": lambda _, manifest: manifest.result.limits.max_seq_len or 0,
    "max_num_tokens": _max_num_tokens,
    "pad_to_multiple_of": _pad_to_multiple_of,
    "padding": lambda _, manifest: manifest.result.runtime.get("padding") or {},
    "add_special_tokens": lambda *_: True,
    "skip_special_tokens": lambda *_: True,
}


def backend_parameters(
    backend: PythonBackend, serving: Serving, manifest: Manifest
) -> dict[str, str]:
    """What a backend has under [settings] and asks for under [parameters] in its backend.toml.

    Raises ConfigurationError for a parameter that nobody gives, RepositoryError where this engine
    does not.
    """
    values = dict(backend.settings)
    for key in sorted(backend.parameters):
        if key not in _PARAMETERS:
            raise ConfigurationError(
                f"backend {backend.name} asks for the unknown parameter `{key}`",
                remedy=f"write `{key} = VALUE` under [settings] in its backend.toml, or "
                f"correct it: {choices(key, _PARAMETERS, 'under [parameters] are known')}",
            )
        value = _PARAMETERS[key](serving, manifest)
        if value is None:
            raise RepositoryError(
                f"backend {backend.name} asks for the parameter `{key}`, which neither the "
                f"project nor the manifest of builder {manifest.builder} gives",
                remedy="make the engine again with `tritonctl build --force`",
            )
        values[key] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return values
