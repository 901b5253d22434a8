# SPDX-License-Identifier: Apache-2.0
"""Makes the command line of trtllm-build. Standard library only."""

from pathlib import Path

from arguments import settable_options
from build_facts import TrtllmBuildPlan
from build_settings import uses_fp8_context, uses_fused_mlp, uses_paged_context
from folders import CHECKPOINT, ENGINE

TOOL = "trtllm-build"

# The tool changes these itself, or changed their defaults between releases.
_ALWAYS = ("context_fmha", "remove_input_padding", "multiple_profiles")


def trtllm_build_command(
    plan: TrtllmBuildPlan, *, timing_cache: tuple[Path | None, Path]
) -> list[str]:
    """Return the whole command. `timing_cache`: the file to read, if any, and the one to write."""
    source = plan.request.source or Path("<the stage quantise>")
    input_cache, output_cache = timing_cache
    return [
        TOOL,
        *("--checkpoint_dir", str(source / CHECKPOINT)),
        *("--output_dir", str(ENGINE)),
        *_size_arguments(plan),
        *_feature_arguments(plan),
        *_option_arguments(plan),
        *(("--input_timing_cache", str(input_cache)) if input_cache else ()),
        *("--output_timing_cache", str(output_cache)),
        *plan.options.extra,
    ]


def _size_arguments(plan: TrtllmBuildPlan) -> list[str]:
    names = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width")
    return [part for name in names for part in (f"--{name}", str(getattr(plan.limits, name)))]


def _feature_arguments(plan: TrtllmBuildPlan) -> list[str]:
    """Return the settings that decide how the engine can be served, always explicit."""
    features = {name: plan.options.is_enabled(name) for name in _ALWAYS}
    features |= {
        "use_paged_context_fmha": uses_paged_context(plan),
        "use_fp8_context_fmha": uses_fp8_context(plan),
        "use_fused_mlp": uses_fused_mlp(plan),
    }
    words = [part for name, on in features.items() for part in (f"--{name}", _switch_word(on))]
    # Without kv_cache_type the tool uses "paged" in every release. Its accepted words have changed.
    return [*words, "--tokens_per_block", str(plan.options.number("tokens_per_block"))]


def _option_arguments(plan: TrtllmBuildPlan) -> list[str]:
    """Return the project's other options in the order of the tool's help."""
    options = plan.options
    always = (
        *(*_ALWAYS, "use_paged_context_fmha", "use_fp8_context_fmha", "use_fused_mlp"),
        *("kv_cache_type", "tokens_per_block"),
    )
    words: list[str] = []
    for name in settable_options(("switch",)):
        if options.is_set(name) and name not in always:
            words += [f"--{name}", _switch_word(options.is_enabled(name))]
    for name in settable_options(("flag",)):
        words += [f"--{name}"] if options.is_enabled(name) else []
    for name in settable_options(("choice", "number", "text")):
        if options.is_set(name) and name not in always:
            words += [f"--{name}", str(options.values[name])]
    for name in settable_options(("list",)):
        words += [f"--{name}", *options.words(name)] if options.is_set(name) else []
    return words


def _switch_word(on: bool) -> str:
    return "enable" if on else "disable"
