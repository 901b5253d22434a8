# SPDX-License-Identifier: Apache-2.0
"""The command line of trtllm-build. Standard library only."""

from pathlib import Path

from arguments import settable
from build_facts import Plan
from build_settings import fp8_context, fused_mlp, paged_context
from folders import CHECKPOINT, ENGINE

TOOL = "trtllm-build"

# The tool changes these itself, or changed their defaults between releases.
_ALWAYS = ("context_fmha", "remove_input_padding", "multiple_profiles")


def command(plan: Plan, *, timing_cache: tuple[Path | None, Path]) -> list[str]:
    """Return the whole command; `timing_cache`: the file to read, if any, and the one to write."""
    source = plan.request.source or Path("<the stage quantise>")
    known, fresh = timing_cache
    return [
        TOOL,
        *("--checkpoint_dir", str(source / CHECKPOINT)),
        *("--output_dir", str(ENGINE)),
        *_sizes(plan),
        *_settings(plan),
        *_options(plan),
        *(("--input_timing_cache", str(known)) if known else ()),
        *("--output_timing_cache", str(fresh)),
        *plan.options.extra,
    ]


def _sizes(plan: Plan) -> list[str]:
    names = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width")
    return [part for name in names for part in (f"--{name}", str(getattr(plan.limits, name)))]


def _settings(plan: Plan) -> list[str]:
    """Return what decides how the engine can be served, said outright."""
    features = {name: plan.options.enabled(name) for name in _ALWAYS}
    features |= {
        "use_paged_context_fmha": paged_context(plan),
        "use_fp8_context_fmha": fp8_context(plan),
        "use_fused_mlp": fused_mlp(plan),
    }
    words = [part for name, on in features.items() for part in (f"--{name}", _word(on))]
    # The type of the KV cache is left to the tool: it comes to "paged" in every release, and how
    # the words are read has changed.
    return [*words, "--tokens_per_block", str(plan.options.number("tokens_per_block"))]


def _options(plan: Plan) -> list[str]:
    """Return what the project chose beside that, in the order of the tool's own help."""
    options = plan.options
    always = (
        *(*_ALWAYS, "use_paged_context_fmha", "use_fp8_context_fmha", "use_fused_mlp"),
        *("kv_cache_type", "tokens_per_block"),
    )
    words: list[str] = []
    for name in settable(("switch",)):
        if options.given(name) and name not in always:
            words += [f"--{name}", _word(options.enabled(name))]
    for name in settable(("flag",)):
        words += [f"--{name}"] if options.enabled(name) else []
    for name in settable(("choice", "number", "text")):
        if options.given(name) and name not in always:
            words += [f"--{name}", str(options.values[name])]
    for name in settable(("list",)):
        words += [f"--{name}", *options.words(name)] if options.given(name) else []
    return words


def _word(on: bool) -> str:
    return "enable" if on else "disable"
