# SPDX-License-Identifier: Apache-2.0
"""The engine step as a model of NVIDIA's C++ backend `tensorrtllm` (`serving.backend`).

Triton images up to 26.07 have it; it runs compiled engines alone. Tensors and parameters are those
of the backend's own template: triton_backend/all_models/inflight_batcher_llm/tensorrt_llm in
https://github.com/NVIDIA/TensorRT-LLM (1.2). It answers with token ids, not with token chunks: the
engine is rendered by itself, without tokenizer, detokenizer and ensemble.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tritonctl.engines.artefacts.manifest import Manifest
from tritonctl.errors import ConfigurationError
from tritonctl.project.schema import Model
from tritonctl.repository.engine_queue import bound_in_engine, engine_batching, triton_decides
from tritonctl.repository.model_config import ModelConfig, Tensor

BACKEND = "tensorrtllm"
_WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
_I, _F, _B, _U, _S = "TYPE_INT32", "TYPE_FP32", "TYPE_BOOL", "TYPE_UINT64", "TYPE_STRING"
_LOGITS, _PROMPT_TABLE, _FEATURES = (
    "logits_datatype",
    "prompt_embedding_table_data_type",
    "encoder_input_features_data_type",
)
# What the builder tensorrt_llm records as the engine's `logits_dtype`.
_LOGITS_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "bfloat16": "TYPE_BF16"}
_DATA_TYPES = {_LOGITS: "TYPE_FP32", _PROMPT_TABLE: "TYPE_FP16", _FEATURES: "TYPE_FP16"}

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
    # Four columns: what today's converter writes; NVIDIA's template still says three.
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
_OTHERS: dict[str, tuple[str, tuple[int, ...]]] = {
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


# --- parameters: what a project may set, and what each value must be -----------------------------


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _windows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_whole(item) for item in value)


def _device_sets(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"\d+(,\d+)*(;\d+(,\d+)*)*", value))


def _one_of(*words: str) -> tuple[str, Callable[[Any], bool]]:
    return f"one of {', '.join(words)}", lambda value: value in words


_WHOLE = ("a whole number", _whole)
_SHARE = ("a number from 0 to 1", _share)
_BOOL = ("true or false", lambda value: isinstance(value, bool))
_TEXT = ("a text", _text)
_PARAMETERS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "gpt_model_type": _one_of("inflight_fused_batching", "inflight_batching", "V1", "v1"),
    "gpt_model_path": _TEXT,
    "encoder_model_path": _TEXT,
    "max_beam_width": _WHOLE,
    "max_tokens_in_paged_kv_cache": _WHOLE,
    "kv_cache_free_gpu_mem_fraction": _SHARE,
    "cross_kv_cache_fraction": _SHARE,
    "kv_cache_host_memory_bytes": _WHOLE,
    "kv_cache_onboard_blocks": _BOOL,
    "enable_kv_cache_reuse": _BOOL,
    "max_attention_window_size": ("a list of whole numbers, one per layer", _windows),
    "sink_token_length": _WHOLE,
    "batch_scheduler_policy": _one_of("guaranteed_no_evict", "max_utilization"),
    "enable_chunked_context": _BOOL,
    "exclude_input_in_output": _BOOL,
    "cancellation_check_period_ms": _WHOLE,
    "stats_check_period_ms": _WHOLE,
    "recv_poll_period_ms": _WHOLE,
    "iter_stats_max_iterations": _WHOLE,
    "request_stats_max_iterations": _WHOLE,
    "normalize_log_probs": _BOOL,
    "gpu_device_ids": ('GPUs per instance, for example "0,1;2,3"', _device_sets),
    "participant_ids": _TEXT,
    "num_nodes": _WHOLE,
    "lora_cache_optimal_adapter_size": _WHOLE,
    "lora_cache_max_adapter_size": _WHOLE,
    "lora_cache_gpu_memory_fraction": _SHARE,
    "lora_cache_host_memory_bytes": _WHOLE,
    "lora_prefetch_dir": _TEXT,
    "decoding_mode": _one_of(
        *("top_k", "top_p", "top_k_top_p", "beam_search"),
        *("medusa", "redrafter", "lookahead", "eagle"),
    ),
    "lookahead_window_size": _WHOLE,
    "lookahead_ngram_size": _WHOLE,
    "lookahead_verification_set_size": _WHOLE,
    "medusa_choices": _TEXT,
    "eagle_choices": _TEXT,
    "gpu_weights_percent": _SHARE,
    "multi_block_mode": _BOOL,
    "enable_context_fmha_fp32_acc": _BOOL,
    "cuda_graph_mode": _BOOL,
    "cuda_graph_cache_size": _WHOLE,
    "speculative_decoding_fast_logits": _BOOL,
    "guided_decoding_backend": _one_of("xgrammar"),
    "xgrammar_tokenizer_info_path": _TEXT,
    **dict.fromkeys(_DATA_TYPES, _one_of("TYPE_FP16", "TYPE_FP32", "TYPE_BF16")),
}
# The backend looks these up without a default and refuses a model that lacks one (0.20 to 1.2.1:
# getGuidedDecodingConfigFromParams in its model_instance_state.cc).
_DEMANDED = ("guided_decoding_backend", "tokenizer_dir", "xgrammar_tokenizer_info_path")
_LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")


def engine_config(
    name: str, step: str, model: Model, manifest: Manifest, engine: Path
) -> ModelConfig:
    """The model `step` of the public model `name`, over the engine folder `engine`.

    Raises ConfigurationError for what the backend would refuse, or misread, at load.
    """
    where = f"models.{name}.serving"
    settings = model.serving.runtime
    _check(where, model, manifest)
    data_types = {key: str(settings.get(key, default)) for key, default in _DATA_TYPES.items()}
    data_types[_LOGITS] = _logits_type(f"{where}.runtime", model, manifest)
    return ModelConfig(
        name=step,
        backend=BACKEND,
        max_batch_size=model.engine.max_batch_size,
        inputs=_inputs(data_types),
        outputs=tuple(
            Tensor(output, data_types.get(kind, kind), dims)
            for output, (kind, dims) in _OUTPUTS.items()
        ),
        decoupled=True,
        dynamic_batching=_dynamic_batching(model),
        # GPUs are chosen by gpu_device_ids; the backend does not look at instance groups for them.
        instance_group=({"kind": "KIND_CPU", "count": _instances(model)},),
        parameters=_parameters(model, manifest, engine),
    )


def _logits_type(where: str, model: Model, manifest: Manifest) -> str:
    """The engine's, if the builder has recorded it: the backend ends the server otherwise."""
    given = model.serving.runtime.get(_LOGITS)
    recorded = _LOGITS_TYPES.get(str(manifest.result.runtime.get("logits_dtype")))
    _require(
        None in (given, recorded) or given == recorded,
        f"{where}.{_LOGITS} is {given}, the engine's logits are {recorded}",
        "remove that line",
    )
    return str(given or recorded or _DATA_TYPES[_LOGITS])


def _inputs(data_types: Mapping[str, str]) -> tuple[Tensor, ...]:
    needed = [
        Tensor(name, _I, (1,), reshape=()) for name in ("input_lengths", "request_output_len")
    ]
    scalars = [
        Tensor(name, kind, (1,), optional=True, reshape=()) for name, kind in _SCALARS.items()
    ]
    ragged = [
        Tensor(name, data_types.get(kind, kind), dims, optional=True, allow_ragged_batch=True)
        for name, (kind, dims) in _RAGGED.items()
    ]
    others = [Tensor(name, kind, dims, optional=True) for name, (kind, dims) in _OTHERS.items()]
    return (*needed, *ragged, *scalars, *others)


def _dynamic_batching(model: Model) -> dict[str, Any]:
    queue, batch = model.serving.queue, model.engine.max_batch_size
    batching = {"preferred_batch_size": [batch]}
    if triton_decides(queue):
        return batching | engine_batching(queue, batch)
    bound = bound_in_engine(queue, batch)
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
        **dict.fromkeys(_DEMANDED, ""),
    }
    if serving.kv_cache_tokens is not None:
        values["max_tokens_in_paged_kv_cache"] = serving.kv_cache_tokens
    values |= {key: value for key, value in serving.runtime.items() if key not in _DATA_TYPES}
    values |= {"executor_worker_path": _WORKER, "FORCE_CPU_ONLY_INPUT_TENSORS": "no"}
    return {key: _written(value) for key, value in values.items()}


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


# --- what the backend would refuse ----------------------------------------------------------------


def _check(where: str, model: Model, manifest: Manifest) -> None:
    world = manifest.result.runtime.get("world")
    _require(
        world == "engine",
        f"{where}.backend: {BACKEND} runs compiled TensorRT-LLM engines, builder "
        f"{manifest.builder} made {'a checkpoint' if world == 'pytorch' else 'something else'}",
        "remove `backend: tensorrtllm`, or compile an engine with the builder tensorrt_llm",
    )
    _require(
        not model.serving.inline_detokenizer,
        f"{where}.inline_detokenizer: {BACKEND} answers with token ids, it makes no text",
        "remove `inline_detokenizer: true`",
    )
    for key, value in model.serving.runtime.items():
        _check_setting(f"{where}.runtime", key, value)
    _check_together(f"{where}.runtime", model)
    _check_paged_context(where, model, manifest)


def _check_paged_context(where: str, model: Model, manifest: Manifest) -> None:
    settings = model.serving.runtime
    reuse = settings.get("enable_kv_cache_reuse", model.serving.enable_prefix_caching)
    wanted = "enable_prefix_caching" if reuse else "runtime.enable_chunked_context"
    _require(
        manifest.result.runtime.get("use_paged_context_fmha") is not False
        or not (reuse or settings.get("enable_chunked_context")),
        f"{where}.{wanted} needs paged context attention, without which the engine was built",
        "switch it off, or build the engine with use_paged_context_fmha",
    )


def _check_setting(where: str, key: str, value: Any) -> None:
    close = difflib.get_close_matches(key, _PARAMETERS, n=1)
    _require(
        key in _PARAMETERS,
        f"{where}: {BACKEND} has no parameter `{key}`",
        f"did you mean `{close[0]}`?" if close else f"parameters: {', '.join(_PARAMETERS)}",
    )
    expected, fits = _PARAMETERS[key]
    _require(fits(value), f"{where}.{key} is {value!r}, expected {expected}", "correct that line")


def _check_together(where: str, model: Model) -> None:
    settings = model.serving.runtime
    if settings.get("decoding_mode") == "lookahead":
        missing = [key for key in _LOOKAHEAD if key not in settings]
        _require(
            not missing,
            f"{where}.decoding_mode: lookahead needs {', '.join(missing)} too",
            "add them, as the engine was built with",
        )
    if "guided_decoding_backend" in settings:
        _require(
            "xgrammar_tokenizer_info_path" in settings,
            f"{where}.guided_decoding_backend: {BACKEND} cannot read a tokenizer by itself",
            "add xgrammar_tokenizer_info_path: the file that TensorRT-LLM's "
            "examples/generate_xgrammar_tokenizer_info.py writes",
        )
    instances = _instances(model)
    sets = len(str(settings.get("gpu_device_ids", "0")).split(";"))
    _require(
        instances == sets,
        f"{where}.gpu_device_ids has {sets} sets of GPUs for {instances} instances",
        "give one set per instance of serving.instance_group, separated by `;`",
    )


def _require(condition: bool, problem: str, remedy: str) -> None:
    if not condition:
        raise ConfigurationError(problem, remedy=remedy)
