# SPDX-License-Identifier: Apache-2.0
"""Verifies the folder that trtllm-build wrote. Standard library only.

Layout: TensorRT-LLM, tensorrt_llm/builder.py, Engine.save.
"""

from collections import deque
from typing import Any

from build_facts import TrtllmBuildPlan
from build_settings import logits_dtype, uses_paged_context
from build_tool import last_lines
from buildlib.problems import BuildError, read_json_object
from folders import ENGINE

_REBUILD = "Build again: `tritonctl build --force`; if it happens twice, report it with build.log."


def verify_engine(plan: TrtllmBuildPlan, tail: deque[str]) -> dict[str, Any]:
    """Compare the engine's config.json with the request and return it.

    Raises:
        BuildError: files are missing, or the engine has another version or size.
    """
    path = ENGINE / "config.json"
    if not path.is_file():
        raise BuildError(
            f"trtllm-build ended with status 0 and wrote no {path}{last_lines(tail)}",
            remedy="Its last lines may say why; the whole log is in build.log.",
        )
    config = read_json_object(path, remedy=_REBUILD)
    _check_version(plan, config)
    _check_ranks(plan)
    _check_sizes(plan, config)
    return config


def _check_version(plan: TrtllmBuildPlan, config: dict[str, Any]) -> None:
    target = plan.request.target
    required_version = target.tensorrt_llm if target else None
    if required_version and config.get("version") != required_version:
        raise BuildError(
            f"the engine was compiled by TensorRT-LLM {config.get('version')}, and release "
            f"{target.release if target else ''} serves with {required_version}: engines do not "
            "load across versions",
            remedy="Compile in the container of that release (engine.runner: container), or "
            "correct engine.target.release.",
        )


def _check_ranks(plan: TrtllmBuildPlan) -> None:
    expected = [f"rank{rank}.engine" for rank in range(plan.quantised.world_size)]
    engines = sorted(path.name for path in ENGINE.glob("rank*.engine"))
    if engines != sorted(expected):
        raise BuildError(
            f"an engine for {len(expected)} GPUs has the files {', '.join(expected)}, and {ENGINE} "
            f"has {', '.join(engines) or 'none'}",
            remedy=_REBUILD,
        )
    empty = [name for name in expected if (ENGINE / name).stat().st_size == 0]
    if empty:
        raise BuildError(f"{ENGINE / empty[0]} is empty", remedy=_REBUILD)


def _check_sizes(plan: TrtllmBuildPlan, config: dict[str, Any]) -> None:
    built = config.get("build_config") or {}
    for name, expected_size in expected_sizes(plan).items():
        if built.get(name) != expected_size:
            raise BuildError(
                f"engine.{name} is {expected_size}, and trtllm-build compiled {built.get(name)}",
                remedy="Its log in build.log says why it changed the size.",
            )
    kind = str(built.get("kv_cache_type", "PAGED"))
    if kind.upper() != "PAGED":
        raise BuildError(
            f"the engine's KV cache is {kind}, and in-flight batching needs a paged one",
            remedy="Its log in build.log says why.",
        )
    plugins = built.get("plugin_config") or {}
    block = plan.options.number("tokens_per_block")
    expected_settings = {
        "tokens_per_block": block,
        "use_paged_context_fmha": uses_paged_context(plan),
    }
    for name, expected in expected_settings.items():
        if plugins.get(name) != expected:
            raise BuildError(
                f"{name} is {expected}, and trtllm-build compiled {plugins.get(name)}",
                remedy="Its log in build.log says why it changed the setting.",
            )
    pretrained = config.get("pretrained_config") or {}
    logits = logits_dtype(plan)
    if pretrained.get("logits_dtype", logits) != logits:
        raise BuildError(
            f"logits_dtype is {logits}, and trtllm-build compiled {pretrained['logits_dtype']}",
            remedy="Its log in build.log says why it changed the type.",
        )
    mapping = pretrained.get("mapping") or {}
    if mapping.get("world_size") != plan.quantised.world_size:
        raise BuildError(
            f"the engine is for {mapping.get('world_size')} GPUs, and the checkpoint for "
            f"{plan.quantised.world_size}",
            remedy=_REBUILD,
        )


def expected_sizes(plan: TrtllmBuildPlan) -> dict[str, int]:
    """Return the expected sizes in `build_config`. Speculative decoding lengthens sequences."""
    names = ("max_batch_size", "max_seq_len", "max_num_tokens", "max_beam_width")
    sizes = {name: int(getattr(plan.limits, name)) for name in names}
    mode = plan.options.choice("speculative_decoding_mode")
    if mode:
        sizes["max_seq_len"] += plan.draft_len
    if mode == "eagle":
        sizes["max_seq_len"] += plan.quantised.num_eagle_layers
    return sizes
