# SPDX-License-Identifier: Apache-2.0
"""TC73x: what a TensorRT-LLM model switches on, and its engine was built without.

Source: cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp in
https://github.com/NVIDIA/TensorRT-LLM (1.2).
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis import declared
from tritonctl.checks.analysis.trtllm_model import Deployment
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import error, warning
from tritonctl.formats.trtllm_backend import READ
from tritonctl.formats.trtllm_engine import Engine

_SPECULATIVE = {
    "medusa": "MEDUSA",
    "redrafter": "EXPLICIT_DRAFT_TOKENS",
    "lookahead": "LOOKAHEAD_DECODING",
    "eagle": "EAGLE",
}
_BUILD_AGAIN = "build the engine again with"


@error(
    "TC730 chunked-context-unpaged",
    summary="chunked context over an engine without paged context attention",
    why="TensorRT-LLM says `Chunked context requires context FMHA, paged kv_cache and paged "
    "context FMHA` and refuses the model.",
)
def _chunked(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    if deployment.flag("enable_chunked_context") and engine.paged_context is False:
        yield Hit(
            "enable_chunked_context needs an engine with use_paged_context_fmha, and this one was "
            "built without",
            f"switch it off, or {_BUILD_AGAIN} --use_paged_context_fmha enable",
            deployment.span("enable_chunked_context"),
        )


@warning(
    "TC731 kv-cache-reuse-off",
    summary="reuse of the KV cache that the engine does not support",
    why="TensorRT-LLM switches it off with a line in its log: every prompt is computed from "
    "its beginning.",
)
def _reuse(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    key = "kv_cache_config" if deployment.kind == "own" else "enable_kv_cache_reuse"
    asked = deployment.flag(key)
    if deployment.kind == "own":
        asked = deployment.settings(key).get("enable_block_reuse") is True
    if not asked:
        return
    if engine.paged_context is False:
        yield Hit(
            "KV cache reuse stays off: the engine was built without use_paged_context_fmha",
            f"also switch it off here, or {_BUILD_AGAIN} --use_paged_context_fmha enable",
            deployment.span(key),
        )
    elif engine.build.get("gather_context_logits") is True:
        yield Hit(
            "KV cache reuse stays off: the engine was built to return context logits",
            f"also switch it off here, or {_BUILD_AGAIN}out --gather_context_logits",
            deployment.span(key),
        )


@error(
    "TC732 in-flight-unpaged",
    summary="in-flight batching over an engine that was not built for it",
    why="TensorRT-LLM needs packed input and a paged KV cache for it and refuses the model.",
)
def _in_flight(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    if not (deployment.text("gpt_model_type") or "").startswith("inflight"):
        return
    padded = engine.plugins.get("remove_input_padding") is False
    continuous = str(engine.build.get("kv_cache_type")).upper().endswith("CONTINUOUS")
    if padded or continuous:
        reason = "a continuous KV cache" if continuous else "padded inputs"
        option = "--kv_cache_type paged" if continuous else "--remove_input_padding enable"
        yield Hit(
            f"in-flight batching cannot run an engine with {reason}",
            f"{_BUILD_AGAIN} {option}",
            deployment.span("gpt_model_type"),
        )


@warning(
    "TC733 speculation-of-engine",
    summary="speculative decoding of another kind than the engine was built for",
    why="The engine has no such heads: TensorRT-LLM goes on with the kind that it has, or "
    "with none.",
)
def _speculation(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    mode, built = deployment.text("decoding_mode") or "", engine.speculation
    wanted = _SPECULATIVE.get(mode)
    if wanted and built and built != wanted:
        what = "none" if built == "NONE" else built.lower()
        yield Hit(
            f"decoding_mode is {mode}, and the engine's speculative decoding is {what}",
            f"leave decoding_mode out, or {_BUILD_AGAIN} --speculative_decoding_mode "
            f"{wanted.lower()}",
            deployment.span("decoding_mode"),
        )


@error(
    "TC734 draft-target-without-reuse",
    summary="an engine that checks a draft model's tokens, without KV cache reuse",
    why="TensorRT-LLM says `KV cache block reuse must be enabled for speculative decoding "
    "target model` and refuses the model.",
)
def _target_reuse(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
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
    why="Only an engine built with weight_streaming can keep weights in host memory.",
)
def _streamed_weights(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    key = "gpu_weights_percent"
    text = deployment.text(key)
    if not text or not READ[key].fits(text) or float(text) >= 1:
        return
    if engine.build.get("weight_streaming") is False:
        yield Hit(
            f"{key} is {text}, and the engine was built without weight_streaming",
            f"leave it out, or {_BUILD_AGAIN} --weight_streaming",
            deployment.span(key),
        )


@error(
    "TC736 cross-attention-of-decoder",
    summary="cross_kv_cache_fraction for a model without an encoder",
    why="TensorRT-LLM says `Do not set crossKvCacheFraction for decoder-only model` and "
    "refuses it.",
)
def _cross_attention(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    key, architecture = "cross_kv_cache_fraction", str(engine.pretrained.get("architecture"))
    text = deployment.text(key)
    decoder = architecture.endswith("ForCausalLM") and not architecture.startswith("M")
    crossed = engine.pretrained.get("cross_attention") or deployment.text("encoder_model_path")
    if text and READ[key].fits(text) and decoder and not crossed:
        yield Hit(
            f"{key} is for models with an encoder, and {architecture} has none",
            f"remove {key}",
            deployment.span(key),
        )


@warning(
    "TC737 lora-of-engine",
    summary="settings for LoRA that do not fit the engine, or today's converter",
    why="Adapters are ignored, or the first request that brings one is refused for its shape.",
    answers=("tensorrtllm_backend#750",),
)
def _lora(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    loaded = engine.plugins.get("lora_plugin")
    directory = deployment.text("lora_prefetch_dir")
    if directory and "lora_plugin" in engine.plugins and not loaded:
        yield Hit(
            "lora_prefetch_dir is given, and the engine was built without --lora_plugin",
            f"remove it, or {_BUILD_AGAIN} --lora_plugin and --lora_target_modules",
            deployment.span("lora_prefetch_dir"),
        )
    for tensor in declared.inputs(deployment.model) if loaded else ():
        if tensor.name == "lora_config" and tensor.dims == (-1, 3):
            yield Hit(
                "lora_config has three columns, and the adapters that hf_lora_convert.py writes "
                "have four",
                "write dims: [ -1, 4 ], here and in the other models that pass it on",
                deployment.config.span(*tensor.path, "dims"),
            )
