# SPDX-License-Identifier: Apache-2.0
"""TC73x: features that a TensorRT-LLM model enables and its engine lacks.

Source: cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp in
https://github.com/NVIDIA/TensorRT-LLM (1.2).
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis import declared
from tritonctl.checks.analysis.trtllm_model import TrtllmDeployment
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import error, warning
from tritonctl.formats.trtllm_backend import PARAMETERS_WITH_DEFAULT
from tritonctl.formats.trtllm_engine import CompiledEngine

_SPECULATIVE = {
    "medusa": "MEDUSA",
    "redrafter": "EXPLICIT_DRAFT_TOKENS",
    "lookahead": "LOOKAHEAD_DECODING",
    "eagle": "EAGLE",
}
_REBUILD = "rebuild the engine with"


@error(
    "TC730 chunked-context-unpaged",
    summary="chunked context over an engine without paged context attention",
    reason="TensorRT-LLM says `Chunked context requires context FMHA, paged kv_cache and paged "
    "context FMHA` and refuses the model.",
    shows="elsewhere",
)
def _chunked(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    if deployment.flag("enable_chunked_context") and engine.paged_context is False:
        yield Hit(
            "enable_chunked_context needs an engine with use_paged_context_fmha, and this one was "
            "built without",
            f"disable it, or {_REBUILD} --use_paged_context_fmha enable",
            deployment.span("enable_chunked_context"),
        )


@warning(
    "TC731 kv-cache-reuse-off",
    summary="reuse of the KV cache that the engine does not support",
    reason="TensorRT-LLM disables it with a line in its log: every prompt is computed from the "
    "start.",
    shows="elsewhere",
)
def _reuse(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    key = "kv_cache_config" if deployment.kind == "own" else "enable_kv_cache_reuse"
    is_requested = deployment.flag(key)
    if deployment.kind == "own":
        is_requested = deployment.settings(key).get("enable_block_reuse") is True
    if not is_requested:
        return
    if engine.paged_context is False:
        yield Hit(
            "KV cache reuse stays off: the engine was built without use_paged_context_fmha",
            f"also disable it here, or {_REBUILD} --use_paged_context_fmha enable",
            deployment.span(key),
        )
    elif engine.build.get("gather_context_logits") is True:
        yield Hit(
            "KV cache reuse stays off: the engine was built to return context logits",
            f"also disable it here, or {_REBUILD}out --gather_context_logits",
            deployment.span(key),
        )


@error(
    "TC732 in-flight-unpaged",
    summary="in-flight batching over an engine that was not built for it",
    reason="TensorRT-LLM needs packed input and a paged KV cache for it and refuses the model.",
    shows="elsewhere",
)
def _in_flight(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    if not (deployment.text("gpt_model_type") or "").startswith("inflight"):
        return
    padded = engine.plugins.get("remove_input_padding") is False
    continuous = str(engine.build.get("kv_cache_type")).upper().endswith("CONTINUOUS")
    if padded or continuous:
        reason = "a continuous KV cache" if continuous else "padded inputs"
        option = "--kv_cache_type paged" if continuous else "--remove_input_padding enable"
        yield Hit(
            f"in-flight batching cannot run an engine with {reason}",
            f"{_REBUILD} {option}",
            deployment.span("gpt_model_type"),
        )


@warning(
    "TC733 speculation-of-engine",
    summary="speculative decoding of another kind than the engine was built for",
    reason="The engine has no such heads: TensorRT-LLM uses the engine's kind, or none.",
    shows="elsewhere",
)
def _speculation(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    mode, built = deployment.text("decoding_mode") or "", engine.speculation
    requested = _SPECULATIVE.get(mode)
    if requested and built and built != requested:
        built_text = "none" if built == "NONE" else built.lower()
        yield Hit(
            f"decoding_mode is {mode}, and the engine's speculative decoding is {built_text}",
            f"remove decoding_mode, or {_REBUILD} --speculative_decoding_mode {requested.lower()}",
            deployment.span("decoding_mode"),
        )


@error(
    "TC734 draft-target-without-reuse",
    summary="an engine that checks a draft model's tokens, without KV cache reuse",
    reason="TensorRT-LLM says `KV cache block reuse must be enabled for speculative decoding "
    "target model` and refuses the model.",
    shows="elsewhere",
)
def _target_reuse(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    off = deployment.flag("enable_kv_cache_reuse") is False
    if off and engine.speculation == "DRAFT_TOKENS_EXTERNAL":
        yield Hit(
            "the engine checks the tokens of a draft model, which needs KV cache reuse",
            "set enable_kv_cache_reuse to true",
            deployment.span("enable_kv_cache_reuse"),
        )


@warning(
    "TC735 weights-not-streamed",
    summary="gpu_weights_percent below 1 for an engine without weight streaming",
    reason="Only an engine built with weight_streaming can keep weights in host memory.",
    shows="elsewhere",
)
def _streamed_weights(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    key = "gpu_weights_percent"
    text = deployment.text(key)
    if not text or not PARAMETERS_WITH_DEFAULT[key].fits(text) or float(text) >= 1:
        return
    if engine.build.get("weight_streaming") is False:
        yield Hit(
            f"{key} is {text}, and the engine was built without weight_streaming",
            f"remove it, or {_REBUILD} --weight_streaming",
            deployment.span(key),
        )


@error(
    "TC736 cross-attention-of-decoder",
    summary="cross_kv_cache_fraction for a model without an encoder",
    reason="TensorRT-LLM says `Do not set crossKvCacheFraction for decoder-only model` and "
    "refuses it.",
    shows="elsewhere",
)
def _cross_attention(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    key, architecture = "cross_kv_cache_fraction", str(engine.pretrained.get("architecture"))
    text = deployment.text(key)
    decoder = architecture.endswith("ForCausalLM") and not architecture.startswith("M")
    crossed = engine.pretrained.get("cross_attention") or deployment.text("encoder_model_path")
    if text and PARAMETERS_WITH_DEFAULT[key].fits(text) and decoder and not crossed:
        yield Hit(
            f"{key} is for models with an encoder, and {architecture} has none",
            f"remove {key}",
            deployment.span(key),
        )


@warning(
    "TC737 lora-of-engine",
    summary="settings for LoRA that do not match the engine, or the current converter",
    reason="TensorRT-LLM ignores adapters, or refuses the first request with one for its shape.",
    answers=("tensorrtllm_backend#750",),
    shows="elsewhere",
)
def _lora(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    loaded = engine.plugins.get("lora_plugin")
    directory = deployment.text("lora_prefetch_dir")
    if directory and "lora_plugin" in engine.plugins and not loaded:
        yield Hit(
            "lora_prefetch_dir is set, and the engine was built without --lora_plugin",
            f"remove it, or {_REBUILD} --lora_plugin and --lora_target_modules",
            deployment.span("lora_prefetch_dir"),
        )
    for tensor in declared.inputs(deployment.model) if loaded else ():
        if tensor.name == "lora_config" and tensor.dims == (-1, 3):
            yield Hit(
                "lora_config has three columns, and the adapters that hf_lora_convert.py writes "
                "have four",
                "write dims: [ -1, 4 ], here and in the other models with this input",
                deployment.config.span(*tensor.path, "dims"),
            )
