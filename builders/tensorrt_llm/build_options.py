# SPDX-License-Identifier: Apache-2.0
"""The options of trtllm-build, by the tool's own names, read and typed. Standard library only.

The table is that of TensorRT-LLM 0.20 to 1.2.1 (tensorrt_llm/commands/build.py, plugin/plugin.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError, nearest
from llm_arguments import ENGINE_ARGUMENTS, read_arguments

_WHERE = "engine.options.compile"

Value = str | int | bool | tuple[str, ...]

_TYPES = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
# Plugins: the default, and the allowed values.
PLUGINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bert_attention_plugin": ("auto", _TYPES),
    "gpt_attention_plugin": ("auto", _TYPES),
    "gemm_plugin": ("disable", (*_TYPES[:-1], "fp8", "nvfp4", "disable")),
    "gemm_swiglu_plugin": ("disable", ("fp8", "disable")),
    "fp8_rowwise_gemm_plugin": ("disable", _TYPES),
    "lora_plugin": ("disable", _TYPES),
    "moe_plugin": ("auto", _TYPES),
    "mamba_conv1d_plugin": ("auto", _TYPES),
    "nccl_plugin": ("auto", _TYPES),
    "low_latency_gemm_plugin": ("disable", ("fp8", "disable")),
    "low_latency_gemm_swiglu_plugin": ("disable", ("fp8", "disable")),
    "gemm_allreduce_plugin": ("disable", ("float16", "bfloat16", "disable")),
}
# `enable` or `disable`: whether enabled when not given.
FEATURES: dict[str, bool] = {
    "context_fmha": True,
    "bert_context_fmha_fp32_acc": False,
    "remove_input_padding": True,
    "use_paged_context_fmha": True,
    "use_fp8_context_fmha": True,
    "fuse_fp4_quant": False,
    "multiple_profiles": False,
    "paged_state": True,
    "streamingllm": False,
    "norm_quant_fusion": False,
    "reduce_fusion": False,
    "user_buffer": False,
    "use_fused_mlp": True,
    "pp_reduce_scatter": False,
    "dora_plugin": False,
}
# Given without a value.
FLAGS = (
    "fast_build",
    "strip_plan",
    "weight_sparsity",
    "weight_streaming",
    "enable_debug_output",
    "monitor_memory",
    "gather_context_logits",
    "gather_generation_logits",
    "gather_all_token_logits",
)
NUMBERS: dict[str, int] = {
    "tokens_per_block": 32,
    "workers": 1,
    "opt_num_tokens": 0,
    "max_encoder_input_len": 1024,
    "max_prompt_embedding_table_size": 0,
    "max_lora_rank": 64,
    "max_draft_len": 0,
}
CHOICES: dict[str, tuple[str, tuple[str, ...]]] = {
    "kv_cache_type": ("paged", ("continuous", "paged", "disabled")),
    "profiling_verbosity": ("layer_names_only", ("layer_names_only", "detailed", "none")),
    "log_level": (
        "info",
        ("internal_error", "error", "warning", "info", "verbose", "debug", "trace"),
    ),
    "logits_dtype": ("float32", ("float16", "float32")),
    "lora_ckpt_source": ("hf", ("hf", "nemo")),
    "speculative_decoding_mode": (
        "",
        ("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle"),
    ),
}
LISTS = ("lora_dir", "lora_target_modules")
_LORA_MODULES = (
    "attn_qkv",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_dense",
    "mlp_h_to_4h",
    "mlp_4h_to_h",
    "mlp_gate",
    "cross_attn_qkv",
    "cross_attn_q",
    "cross_attn_k",
    "cross_attn_v",
    "cross_attn_dense",
    "moe_h_to_4h",
    "moe_4h_to_h",
    "moe_gate",
    "moe_router",
    "mlp_router",
    "mlp_gate_up",
)
TEXTS = ("visualize_network", "model_cls_file", "model_cls_name")

# Arguments of the tool that are set elsewhere, or not at all: what to do instead.
ELSEWHERE: dict[str, str] = {
    **{
        name: f"Set engine.{name} instead."
        for name in (
            "max_batch_size",
            "max_input_len",
            "max_seq_len",
            "max_num_tokens",
            "max_beam_width",
        )
    },
    "max_decoder_seq_len": "Set engine.max_seq_len instead.",
    "max_multimodal_len": "Use its other name, max_prompt_embedding_table_size.",
    "build_config": "Remove it: that file would override every size of the engine.",
    "model_config": "Remove it: it builds an engine with dummy weights.",
    "checkpoint_dir": "Remove it: the build decides where checkpoint and engine lie.",
    "output_dir": "Remove it: the build decides where checkpoint and engine lie.",
    "input_timing_cache": f"Set {_WHERE}.timing_cache to a folder instead.",
    "output_timing_cache": f"Set {_WHERE}.timing_cache to a folder instead.",
    "paged_kv_cache": "Use kv_cache_type: it is deprecated.",
    "dry_run": "Use `tritonctl build --dry-run`: the tool's own makes no engine.",
    "tp_size": "Set engine.tp_size: the checkpoint is quantised for so many GPUs.",
    "pp_size": "Set engine.pp_size: the checkpoint is quantised for so many GPUs.",
    "auto_parallel": "Set engine.tp_size or engine.pp_size: the tool dropped it in 1.1.",
    "gpus_per_node": "Remove it: the tool dropped it in 1.1.",
    "cluster_key": "Remove it: the tool dropped it in 1.1.",
}
_OWN = ("extra", "timing_cache")


@dataclass(frozen=True)
class Options:
    """`engine.options.compile` as checked; what was not given has the tool's default."""

    values: Mapping[str, Value] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    timing_cache: Path | None = None
    llm_arguments: Mapping[str, Any] = field(default_factory=dict)

    def given(self, name: str) -> bool:
        """Return whether the project sets this option."""
        return name in self.values

    def enabled(self, name: str) -> bool:
        """Return whether a feature or flag is on."""
        value = self.values.get(name, FEATURES.get(name, False))
        return bool(value)

    def insisted(self, name: str) -> bool:
        """Return whether the project itself enables a feature."""
        return self.given(name) and self.enabled(name)

    def refused(self, name: str) -> bool:
        """Return whether the project itself disables a feature."""
        return self.given(name) and not self.enabled(name)

    def choice(self, name: str) -> str:
        """Return a choice or a plugin's type; "" if it is absent or disabled."""
        default = (PLUGINS.get(name) or CHOICES[name])[0]
        value = str(self.values.get(name, default))
        return "" if value == "disable" else value

    def number(self, name: str) -> int:
        """Return a number."""
        return int(str(self.values.get(name, NUMBERS[name])))


def read_options(raw: Mapping[str, Any]) -> Options:
    """Return the checked options.

    Raises:
        BuildError: one is unknown, set elsewhere, or has a value that the tool does not take.
    """
    values: dict[str, Value] = {}
    arguments: dict[str, Any] = {}
    for name, value in raw.items():
        if name in ENGINE_ARGUMENTS:
            arguments[name] = value
        elif name not in _OWN:
            values[name] = _value(name, value)
    extra = _extra(raw.get("extra", []), values)
    cache = raw.get("timing_cache")
    if cache is not None and not (isinstance(cache, str) and Path(cache).is_absolute()):
        raise _wrong("timing_cache", cache, "the absolute path of a folder")
    return Options(
        values=values,
        extra=extra,
        timing_cache=Path(cache) if cache else None,
        llm_arguments=read_arguments(arguments, ENGINE_ARGUMENTS, _WHERE),
    )


def _value(name: str, value: Any) -> Value:
    if name in ELSEWHERE:
        raise BuildError(f"{_WHERE}.{name} cannot be set", remedy=ELSEWHERE[name])
    if name in FEATURES or name in FLAGS:
        return _switch(name, value)
    if name in NUMBERS:
        return _number(name, value)
    if name in PLUGINS or name in CHOICES:
        return _one_of(name, value, (PLUGINS.get(name) or CHOICES[name])[1])
    if name in LISTS:
        return _strings(name, value)
    if name in TEXTS:
        if not isinstance(value, str) or not value:
            raise _wrong(name, value, "text")
        return value
    known = (*FEATURES, *FLAGS, *NUMBERS, *PLUGINS, *CHOICES, *LISTS, *TEXTS, *_OWN)
    raise BuildError(
        f"trtllm-build has no option {name!r}{nearest(name, (*known, *ENGINE_ARGUMENTS))}",
        remedy=f"Correct the name in {_WHERE}; what this tritonctl does not know goes into "
        f'{_WHERE}.extra, for example ["--flag", "value"].',
    )


def _switch(name: str, value: Any) -> bool:
    words = {"enable": True, "disable": False, True: True, False: False}
    if not isinstance(value, str | bool) or value not in words:
        raise _wrong(name, value, "enable or disable")
    return words[value]


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _wrong(name, value, "a whole number")
    return value


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    # YAML reads a bare `none` as text, but `no` and `off` as false.
    if value is False and "disable" in choices:
        return "disable"
    if not isinstance(value, str) or value not in choices:
        raise _wrong(name, value, f"one of {', '.join(choices)}{nearest(str(value), choices)}")
    return value


def _strings(name: str, value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(i, str) for i in items):
        raise _wrong(name, value, "a list of text")
    for item in items if name == "lora_target_modules" else ():
        if item not in _LORA_MODULES:
            known = f"{', '.join(_LORA_MODULES)}; not {item!r}"
            raise _wrong(name, value, f"some of {known}{nearest(item, _LORA_MODULES)}")
    return tuple(items)


def _extra(raw: Any, values: Mapping[str, Value]) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
        raise _wrong("extra", raw, 'a list of text such as ["--flag", "value"]')
    for item in raw:
        name = item.removeprefix("--").split("=")[0]
        if not item.startswith("--"):
            continue
        # argparse silently lets the last one win.
        if name in values:
            raise BuildError(
                f"{_WHERE}.extra repeats {name}, which {_WHERE} sets already",
                remedy=f"Remove one of the two {name}.",
            )
        if name in ELSEWHERE:
            raise BuildError(
                f"{_WHERE}.extra sets {item}, which cannot be set", remedy=ELSEWHERE[name]
            )
    return tuple(raw)


def _wrong(name: str, value: Any, expected: str) -> BuildError:
    return BuildError(
        f"{_WHERE}.{name} is {value!r}, expected {expected}",
        remedy=f"Correct {_WHERE}.{name}, or leave it out.",
    )
