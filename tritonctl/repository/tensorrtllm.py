# SPDX-License-Identifier: Apache-2.0
"""The engine step as a model of NVIDIA's C++ backend `tensorrtllm` (`serving.backend`).

Triton images up to 26.07 include it; it only runs compiled engines. Tensors and parameters follow
the backend's template: triton_backend/all_models/inflight_batcher_llm/tensorrt_llm in
https://github.com/NVIDIA/TensorRT-LLM (1.2). It returns token ids instead of token chunks, so the
engine is rendered alone, without tokenizer, detokenizer and ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tritonctl.engines.artefacts.manifest import Manifest
from tritonctl.errors import ConfigurationError, choices
from tritonctl.formats.trtllm_backend import (
    DEMANDED_PARAMETERS,
    LOGITS_TYPES,
    LOOKAHEAD_PARAMETERS,
    PARAMETERS,
    Kind,
    Parameter,
)
from tritonctl.project.schema import Model
from tritonctl.repository.engine_queue import (
    engine_batching,
    engine_queue_bound,
    needs_triton_queue,
)
from tritonctl.repository.model_config import ConfigTensor, ModelConfig

BACKEND = "tensorrtllm"
_WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
_I, _F, _B, _U, _S = "TYPE_INT32", "TYPE_FP32", "TYPE_BOOL", "TYPE_UINT64", "TYPE_STRING"
_LOGITS, _PROMPT_TABLE, _FEATURES = (
    "logits_datatype",
    "prompt_embedding_table_data_type",
    "encoder_input_features_data_type",
)
_DATA_TYPES = {_LOGITS: "TYPE_FP32", _PROMPT_TABLE: "TYPE_FP16", _FEATURES: "TYPE_FP16"}

# The builder's KvCacheConfig fields, with the backend's parameters.
_BUILT = {
    "max_tokens": "max_tokens_in_paged_kv_cache",
    "max_attention_window": "max_attention_window_size",
    "sink_token_length": "sink_token_length",
    "free_gpu_memory_fraction": "kv_cache_free_gpu_mem_fraction",
    "host_cache_size": "kv_cache_host_memory_bytes",
    "onboard_blocks": "kv_cache_onboard_blocks",
    "cross_kv_cache_fraction": "cross_kv_cache_fraction",
}

# One value per request: dims [1], which the backend sees without that dimension.
_SCALARS: dict[str, str] = {
    **dict.fromkeys(("encoder_output_lengths", "num_return_sequences"), _I),
    **dict.fromkeys(("decoder_input_lengths", "end_id", "pad_id", "beam_width"), _I),
    **dict.fromkeys(("runtime_top_k", "runtime_top_p_reset_ids", "min_tokens"), _I),
    "prompt_vocab_size": _I,
    **dict.fromkeys(("draft_acceptance_threshold", "temperature", "runtime_top_p"), _F),
    **dict.fromkeys(("runtime_top_p_min", "runtime_top_p_decay", "len_penalty"), _F),
    **dict.fromkeys(("repetition_penalty", "beam_search_diversity_rate"), _F),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), _F),
    **dict.fromkeys(("seed", "lora_task_id"), _U),
    **dict.fromkeys(("early_stopping", "return_log_probs", "return_context_logits"), _B),
    **dict.fromkeys(("return_generation_logits", "return_perf_metrics"), _B),
    **dict.fromkeys(("return_num_input_tokens", "return_num_output_tokens"), _B),
    **dict.fromkeys(("exclude_input_in_output", "stop", "streaming"), _B),
}
# Requests whose shapes differ may be in one batch.
_RAGGED: dict[str, tuple[str, tuple[int, ...]]] = {
    "input_ids": (_I, (-1,)),
    "encoder_input_features": (_FEATURES, (-1, -1)),
    "draft_input_ids": (_I, (-1,)),
    "decoder_input_ids": (_I, (-1,)),
    "draft_logits": (_LOGITS, (-1, -1)),
    "stop_words_list": (_I, (2, -1)),
    "bad_words_list": (_I, (2, -1)),
    "embedding_bias": (_F, (-1,)),
    "prompt_embedding_table": (_PROMPT_TABLE, (-1, -1)),
    "prompt_table_extra_ids": (_U, (-1,)),
    "cross_attention_mask": (_B, (-1, -1)),
    "lora_weights": ("TYPE_FP16", (-1, -1)),
    # Four columns, as the current converter writes; NVIDIA's template still has three.
    "lora_config": (_I, (-1, 4)),
    "context_phase_params": ("TYPE_UINT8", (-1,)),
    "skip_cross_attn_blocks": (_B, (1,)),
    "retention_token_range_starts": (_I, (-1,)),
    "retention_token_range_ends": (_I, (-1,)),
    "retention_token_range_priorities": (_I, (-1,)),
    "retention_token_range_durations_ms": (_I, (-1,)),
    "retention_decode_priority": (_I, (1,)),
    "retention_decode_duration_ms": (_I, (1,)),
    "guided_decoding_guide_type": (_S, (1,)),
    "guided_decoding_guide": (_S, (1,)),
    "lookahead_window_size": (_I, (1,)),
    "lookahead_ngram_size": (_I, (1,)),
    "lookahead_verification_set_size": (_I, (1,)),
}
_OTHER_INPUTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "mrope_rotary_cos_sin": (_F, (-1,)),
    "mrope_position_deltas": ("TYPE_INT64", (1,)),
}
_OUTPUTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "output_ids": (_I, (-1, -1)),
    "sequence_length": (_I, (-1,)),
    "cum_log_probs": (_F, (-1,)),
    "output_log_probs": (_F, (-1, -1)),
    "context_logits": (_LOGITS, (-1, -1)),
    "generation_logits": (_LOGITS, (-1, -1, -1)),
    "batch_index": (_I, (1,)),
    "sequence_index": (_I, (1,)),
    "context_phase_params": ("TYPE_UINT8", (-1,)),
    "kv_cache_alloc_new_blocks": (_I, (1,)),
    "kv_cache_reused_blocks": (_I, (1,)),
    "kv_cache_alloc_total_blocks": (_I, (1,)),
    "arrival_time_ns": ("TYPE_INT64", (1,)),
    "first_scheduled_time_ns": ("TYPE_INT64", (1,)),
    "first_token_time_ns": ("TYPE_INT64", (1,)),
    "last_token_time_ns": ("TYPE_INT64", (1,)),
    "acceptance_rate": (_F, (1,)),
    "total_accepted_draft_tokens": (_I, (1,)),
    "total_draft_tokens": (_I, (1,)),
    "num_input_tokens": (_I, (1,)),
    "num_output_tokens": (_I, (1,)),
}


# --- parameters that a project may set, and their values -----------------------------------------


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_windows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_whole(item) for item in value)


# Description and test of a value in tritonctl.yaml, by the kind of its parameter.
_VALUES: dict[Kind, tuple[str, Callable[[Any], bool]]] = {
    "whole": ("a whole number", _is_whole),
    "number": ("a number", _is_number),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "windows": ("a list of whole numbers, one per layer", _is_windows),
    "gpus": (
        'GPUs per instance, for example "0,1;2,3"',
        lambda value: isinstance(value, str) and not value.endswith(";"),
    ),
    "ranks": ('MPI ranks per instance, for example "1,2;3,4"', _is_text),
    "choice": ("a text", _is_text),
    "text": ("a text", _is_text),
}
_WRITTEN_BY_RENDER = ("executor_worker_path", "FORCE_CPU_ONLY_INPUT_TENSORS", "tokenizer_dir")
_SETTINGS: dict[str, Parameter] = {
    **{key: parameter for key, parameter in PARAMETERS.items() if key not in _WRITTEN_BY_RENDER},
    **dict.fromkeys(
        _DATA_TYPES, Parameter("choice", choices=("TYPE_FP16", "TYPE_FP32", "TYPE_BF16"))
    ),
}


def engine_config(
    name: str, step: str, model: Model, manifest: Manifest, engine: Path
) -> ModelConfig:
    """Return the configuration of model `step` of public model `name` for the folder `engine`.

    Raises ConfigurationError for settings that the backend would refuse or misread on loading.
    """
    location = f"models.{name}.serving"
    settings = model.serving.runtime
    _check(location, model, manifest)
    data_types = {key: str(settings.get(key, default)) for key, default in _DATA_TYPES.items()}
    data_types[_LOGITS] = _logits_type(f"{location}.runtime", model, manifest)
    return ModelConfig(
        name=step,
        backend=BACKEND,
        max_batch_size=model.engine.max_batch_size,
        inputs=_inputs(data_types),
        outputs=tuple(
            ConfigTensor(output, data_types.get(kind, kind), dims)
            for output, (kind, dims) in _OUTPUTS.items()
        ),
        decoupled=True,
        dynamic_batching=_dynamic_batching(model),
        # gpu_device_ids selects the GPUs; the backend ignores those of instance groups.
        instance_group=({"kind": "KIND_CPU", "count": _instances(model)},),
        parameters=_parameters(model, manifest, engine),
    )


def _logits_type(location: str, model: Model, manifest: Manifest) -> str:
    """Return the engine's logits type if recorded: a wrong one crashes the server."""
    requested = model.serving.runtime.get(_LOGITS)
    recorded = LOGITS_TYPES.get(str(manifest.result.runtime.get("logits_dtype")))
    _require(
        None in (requested, recorded) or requested == recorded,
        f"{location}.{_LOGITS} is {requested}, the engine's logits are {recorded}",
        "remove that line",
    )
    return str(requested or recorded or _DATA_TYPES[_LOGITS])


def _inputs(data_types: Mapping[str, str]) -> tuple[ConfigTensor, ...]:
    required = [
        ConfigTensor(name, _I, (1,), reshape=()) for name in ("input_lengths", "request_output_len")
    ]
    scalars = [
        ConfigTensor(name, kind, (1,), optional=True, reshape=()) for name, kind in _SCALARS.items()
    ]
    ragged = [
        ConfigTensor(name, data_types.get(kind, kind), dims, optional=True, allow_ragged_batch=True)
        for name, (kind, dims) in _RAGGED.items()
    ]
    other_inputs = [
        ConfigTensor(name, kind, dims, optional=True)
        for name, (kind, dims) in _OTHER_INPUTS.items()
    ]
    return (*required, *ragged, *scalars, *other_inputs)


def _dynamic_batching(model: Model) -> dict[str, Any]:
    queue, batch = model.serving.queue, model.engine.max_batch_size
    batching = {"preferred_batch_size": [batch]}
    if needs_triton_queue(queue):
        return batching | engine_batching(queue, batch)
    bound = engine_queue_bound(queue, batch)
    return batching | ({"default_queue_policy": {"max_queue_size": bound}} if bound else {})


def _instances(model: Model) -> int:
    return sum(group.count for group in model.serving.instance_group)


def _parameters(model: Model, manifest: Manifest, engine: Path) -> dict[str, str]:
    serving = model.serving
    values: dict[str, Any] = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": str(engine),
        "max_beam_width": manifest.result.limits.max_beam_width,
        "enable_kv_cache_reuse": serving.enable_prefix_caching,
        "exclude_input_in_output": True,
        **dict.fromkeys(DEMANDED_PARAMETERS, ""),
    }
    values |= _built_settings(manifest)
    if serving.kv_cache_tokens is not None:
        values["max_tokens_in_paged_kv_cache"] = serving.kv_cache_tokens
    values |= {key: value for key, value in serving.runtime.items() if key not in _DATA_TYPES}
    values |= {"executor_worker_path": _WORKER, "FORCE_CPU_ONLY_INPUT_TENSORS": "no"}
    return {key: _to_text(value) for key, value in values.items()}


def _built_settings(manifest: Manifest) -> dict[str, Any]:
    """Return the serving settings that the engine was built with; others have defaults."""
    built = manifest.result.runtime
    cache = built.get("kv_cache_config") or {}
    values = {key: cache[name] for name, key in _BUILT.items() if cache.get(name) is not None}
    return values | (
        {"enable_chunked_context": True} if built.get("enable_chunked_prefill") else {}
    )


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


# --- checks of settings that the backend refuses --------------------------------------------------


def _check(location: str, model: Model, manifest: Manifest) -> None:
    world = manifest.result.runtime.get("world")
    _require(
        world == "engine",
        f"{location}.backend: {BACKEND} runs compiled TensorRT-LLM engines, builder "
        f"{manifest.builder} made {'a checkpoint' if world == 'pytorch' else 'something else'}",
        "remove `backend: tensorrtllm`, or compile an engine with the builder tensorrt_llm",
    )
    _require(
        not model.serving.inline_detokenizer,
        f"{location}.inline_detokenizer: {BACKEND} returns token ids, not text",
        "remove `inline_detokenizer: true`",
    )
    for key, value in _built_settings(manifest).items():
        if key not in model.serving.runtime:
            _check_setting("the serving settings that the engine was built with", key, value)
    for key, value in model.serving.runtime.items():
        _check_setting(f"{location}.runtime", key, value)
    _check_together(f"{location}.runtime", model)
    _check_paged_context(location, model, manifest)


def _check_paged_context(location: str, model: Model, manifest: Manifest) -> None:
    settings = model.serving.runtime
    reuse = settings.get("enable_kv_cache_reuse", model.serving.enable_prefix_caching)
    setting = "enable_prefix_caching" if reuse else "runtime.enable_chunked_context"
    _require(
        manifest.result.runtime.get("use_paged_context_fmha") is not False
        or not (reuse or settings.get("enable_chunked_context")),
        f"{location}.{setting} needs paged context attention, which the engine was built without",
        "disable it, or build the engine with use_paged_context_fmha",
    )


def _check_setting(location: str, key: str, value: Any) -> None:
    _require(
        key in _SETTINGS,
        f"{location}: {BACKEND} has no parameter `{key}`",
        choices(key, _SETTINGS, "parameters:"),
    )
    parameter = _SETTINGS[key]
    expected, fits = _VALUES[parameter.kind]
    if parameter.choices:
        expected = f"one of {', '.join(parameter.choices)}"
    if parameter.limit:
        expected += f" {parameter.limit.expected_format}"
    _require(
        fits(value)
        and parameter.fits(_to_text(value))
        and (not parameter.choices or value in parameter.choices)
        and (parameter.limit is None or parameter.limit.holds(value)),
        f"{location}.{key} is {value!r}, expected {expected}",
        "correct that line",
    )


def _check_together(location: str, model: Model) -> None:
    settings = model.serving.runtime
    if settings.get("decoding_mode") == "lookahead":
        missing = [key for key in LOOKAHEAD_PARAMETERS if key not in settings]
        _require(
            not missing,
            f"{location}.decoding_mode: lookahead needs {', '.join(missing)} too",
            "add the values that the engine was built with",
        )
    if "guided_decoding_backend" in settings:
        _require(
            "xgrammar_tokenizer_info_path" in settings,
            f"{location}.guided_decoding_backend: {BACKEND} cannot read a tokenizer",
            "add xgrammar_tokenizer_info_path: the output file of TensorRT-LLM's "
            "examples/generate_xgrammar_tokenizer_info.py",
        )
    instances = _instances(model)
    sets = len(str(settings.get("gpu_device_ids", "0")).split(";"))
    _require(
        instances == sets,
        f"{location}.gpu_device_ids has {sets} sets of GPUs for {instances} instances",
        "give one set per instance of serving.instance_group, separated by `;`",
    )


def _require(condition: bool, problem: str, remedy: str) -> None:
    if not condition:
        raise ConfigurationError(problem, remedy=remedy)
