# SPDX-License-Identifier: Apache-2.0
"""The parameters of a composing model, from the project and the engine's manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tritonctl.engines.artefacts.manifest import Manifest
from tritonctl.errors import ConfigurationError, RepositoryError, choices
from tritonctl.project.compatibility import trtllm_arguments
from tritonctl.project.schema import Serving
from tritonctl.repository.backends import PythonBackend
from tritonctl.repository.engine_queue import engine_queue_bound, max_in_flight
from tritonctl.repository.native import NATIVE


def _kv_blocks(serving: Serving, manifest: Manifest) -> int | None:
    limits, block = manifest.result.limits, manifest.result.runtime.get("block_size")
    if not isinstance(block, int) or limits.max_seq_len is None:
        return None
    # Sequences do not share blocks: round up per sequence, not in total.
    per_sequence = -(-limits.max_seq_len // block)
    if serving.kv_cache_tokens is None:
        return limits.max_batch_size * per_sequence
    return -(-_kv_cache_tokens(serving.kv_cache_tokens, limits.max_seq_len) // block)


def _kv_cache_tokens(tokens: int, max_seq_len: int | None) -> int:
    if tokens < (max_seq_len or 0):
        raise ConfigurationError(
            f"serving.kv_cache_tokens {tokens} is less than one sequence of "
            f"max_seq_len {max_seq_len}",
            remedy=f"set it to {max_seq_len} or more, or omit it",
        )
    return tokens


def _model_fact(manifest: Manifest, name: str) -> object:
    """Return a property of a text-generation model; None for another engine."""
    return getattr(manifest.result.model, name, None)


def _runtime_setting(serving: Serving, manifest: Manifest, key: str) -> Any:
    """Return a setting of the engine's runtime: the project's, else the builder's."""
    return serving.runtime.get(key, manifest.result.runtime.get(key))


def _kv_cache_config(serving: Serving, manifest: Manifest) -> dict[str, Any]:
    """Return KvCacheConfig of TensorRT-LLM: artefact, project and the project's raw fields."""
    built = manifest.result.runtime.get("kv_cache_config") or {}
    # An engine without paged context attention cannot reuse blocks.
    reuse = serving.enable_prefix_caching and built.get("enable_block_reuse") is not False
    project_fields: dict[str, Any] = {"enable_block_reuse": reuse}
    if serving.kv_cache_tokens is not None:
        max_seq_len = manifest.result.limits.max_seq_len
        project_fields["max_tokens"] = _kv_cache_tokens(serving.kv_cache_tokens, max_seq_len)
    raw_fields = serving.runtime.get("kv_cache_config", {})
    _check_kv_cache_fields(raw_fields, manifest.result.versions.get("tensorrt_llm", ""))
    return {**built, **project_fields, **raw_fields}


def _check_kv_cache_fields(raw_fields: Mapping[str, Any], version: str) -> None:
    field_names = trtllm_arguments.kv_cache_fields(version)
    for name in raw_fields:
        is_known = name in field_names
        if not is_known and not trtllm_arguments.may_have_other_kv_cache_fields(version):
            raise ConfigurationError(
                f"serving.runtime.kv_cache_config.{name} is not a field of KvCacheConfig"
                f"{f' in TensorRT-LLM {version}' if version else ''}",
                remedy=choices(name, field_names, "fields:"),
            )


def _max_num_tokens(_: Serving, manifest: Manifest) -> int:
    """Return the builder's limit, or the requested one for tasks that apply it in serving."""
    built, requested = manifest.result.limits.max_num_tokens, manifest.request.limits.max_num_tokens
    return built or (requested if manifest.task != "tensors" else None) or 0


def _pad_to_multiple_of(serving: Serving, manifest: Manifest) -> int:
    """Return the length multiple: native backends only batch requests of equal shape."""
    backend = serving.backend or manifest.python_backend
    return _NATIVE_MULTIPLE if backend in NATIVE else 1


_Parameter = Callable[[Serving, Manifest], object]

# Tokens; a text of 40 is padded to 64 and shares its run with all texts of 33 to 64.
_NATIVE_MULTIPLE = 32

# Settings in `serving.runtime`, for backends that have the parameter.
RUNTIME_SETTINGS = ("gather_generation_logits", "guided_decoding_backend", "kv_cache_config")

# Parameters that a backend may list under [parameters] in its backend.toml.
_PARAMETERS: dict[str, _Parameter] = {
    "max_seq_len": lambda _, manifest: manifest.result.limits.max_seq_len,
    "max_input_len": lambda _, manifest: manifest.result.limits.max_input_len,
    "max_num_seqs": lambda _, manifest: manifest.result.limits.max_batch_size,
    "max_num_batched_tokens": lambda _, manifest: manifest.result.limits.max_num_tokens,
    "num_kv_blocks": _kv_blocks,
    "block_size": lambda _, manifest: manifest.result.runtime.get("block_size"),
    "properties": lambda _, manifest: manifest.result.runtime.get("properties"),
    "enable_prefix_caching": lambda serving, _: serving.enable_prefix_caching,
    "max_queue_size": lambda serving, manifest: engine_queue_bound(
        serving.queue, manifest.result.limits.max_batch_size
    ),
    "max_requests": lambda serving, manifest: max_in_flight(
        serving.queue, manifest.result.limits.max_batch_size
    ),
    "eos_token_ids": lambda _, manifest: _model_fact(manifest, "eos_token_ids"),
    "vocab_size": lambda _, manifest: _model_fact(manifest, "vocab_size"),
    "world": lambda serving, manifest: _runtime_setting(serving, manifest, "world"),
    "tensorrt_llm": lambda _, manifest: manifest.result.versions.get("tensorrt_llm", ""),
    "tp_size": lambda _, manifest: manifest.result.limits.tp_size,
    "pp_size": lambda _, manifest: manifest.result.limits.pp_size,
    "kv_cache_config": _kv_cache_config,
    "guided_decoding_backend": lambda serving, manifest: (
        _runtime_setting(serving, manifest, "guided_decoding_backend") or ""
    ),
    "gather_generation_logits": lambda serving, manifest: bool(
        _runtime_setting(serving, manifest, "gather_generation_logits")
    ),
    "lora_adapters": lambda _, manifest: manifest.result.runtime.get("lora_adapters") or {},
    "max_pixels": lambda serving, _: serving.max_image_pixels,
    "session": lambda serving, _: serving.session.model_dump(),
    "parallel_runs": lambda serving, _: serving.max_parallel_runs,
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
    """Return the [settings] and the requested [parameters] of a backend.toml.

    Raises ConfigurationError for an unknown parameter, RepositoryError if this engine lacks it.
    """
    values = dict(backend.settings)
    for key in sorted(backend.parameters):
        if key not in _PARAMETERS:
            raise ConfigurationError(
                f"backend {backend.name} requests the unknown parameter `{key}`",
                remedy=f"write `{key} = VALUE` under [settings] in its backend.toml, or "
                f"correct it: {choices(key, _PARAMETERS, 'valid under [parameters]:')}",
            )
        value = _PARAMETERS[key](serving, manifest)
        if value is None:
            raise RepositoryError(
                f"backend {backend.name} requests the parameter `{key}`, which neither the "
                f"project nor the manifest of builder {manifest.builder} provides",
                remedy="make the engine again with `tritonctl build --force`",
            )
        values[key] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return values
