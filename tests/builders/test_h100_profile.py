# SPDX-License-Identifier: Apache-2.0
"""The shipped checkpoint on an H100: what `tritonctl build --dry-run` says would be run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.commands import run_here
from tritonctl.engines.builds.stages import resolve_build
from tritonctl.project.file import load_project

CHECKOUT = Path(__file__).resolve().parents[2]


def dry_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in the checkout, which is itself a project."""
    return run_here("build", "--env", "h100", "--dry-run", *arguments, cwd=CHECKOUT)


def test_every_command_is_shown() -> None:
    """Quantising, the container, and trtllm-build inside it, before anything is installed."""
    done = dry_run()
    assert done.returncode == 0, done.stderr
    quantise, container, inside = (
        line for line in done.stdout.splitlines() if not line.startswith("#")
    )
    assert "builders/tensorrt_llm/quantise.py --request" in quantise
    assert " --gpus all " in container
    assert "tritonserver:26.07-trtllm-python-py3 python3 " in container
    assert "builders/tensorrt_llm/compile.py --request" in container
    assert inside.startswith("trtllm-build --checkpoint_dir ")
    assert " --max_batch_size 32 --max_input_len 511 --max_seq_len 512 " in inside
    assert " --use_paged_context_fmha enable --use_fp8_context_fmha enable " in inside


def test_the_timing_cache_is_mounted() -> None:
    """The one folder outside the build that a container may write to; not part of the engine."""
    done = dry_run("--set", "models.speller.engine.options.compile.timing_cache=/somewhere/cache")
    container = next(line for line in done.stdout.splitlines() if " --gpus all " in line)
    assert "type=bind,source=/somewhere/cache,target=/somewhere/cache " in container
    assert "--input_timing_cache '/somewhere/cache/<TensorRT>-<GPU>.cache'" in done.stdout
    plain = dry_run()
    names = [re.findall(r"tritonctl-build-\w+", text.stdout)[0] for text in (done, plain)]
    assert names[0] == names[1]


def test_the_pytorch_world_packages_instead() -> None:
    """From 1.3.0rc21 on nothing is compiled."""
    done = dry_run("--set", "models.speller.engine.target.release=1.3.0rc29")
    assert done.returncode == 0, done.stderr
    assert "builders/tensorrt_llm/package.py --request" in done.stdout
    assert "trtllm-build" not in done.stdout


def test_what_cannot_be_is_refused_without_running_anything() -> None:
    """By the compatibility table, and by the builder's own rules."""
    by_table = dry_run("--set", "models.speller.engine.target.gpu=A100-80", "--json")
    assert by_table.returncode == 3
    assert "FP8 arithmetic came with Ada" in json.loads(by_table.stdout)["problem"]
    by_rule = dry_run("--set", "models.speller.engine.options.compile.tokens_per_block=48")
    assert by_rule.returncode == 5
    assert "[tokens-per-block-is-a-power-of-two]" in by_rule.stderr


@pytest.mark.parametrize("option", ["quantise.awq_block_size=32", "quantise.depth=1"])
def test_a_dry_run_refuses_what_a_plan_refuses(option: str) -> None:
    """Also a stage that prints no commands of its own checks its request."""
    setting = f"models.speller.engine.options.{option}"
    planned = run_here("plan", "--env", "h100", "--set", setting, cwd=CHECKOUT)
    shown = dry_run("--set", setting)
    assert (planned.returncode, shown.returncode) == (5, 5), (planned.stderr, shown.stderr)
    assert not shown.stdout
    assert shown.stderr.splitlines()[0] in planned.stderr.splitlines()


def test_a_dry_run_stops_where_the_build_would() -> None:
    """`--until quantise` shows the first stage only."""
    done = dry_run("--until", "quantise")
    assert "builders/tensorrt_llm/quantise.py --request" in done.stdout
    assert "trtllm-build" not in done.stdout


def test_a_release_that_was_not_read_is_said() -> None:
    """25.11 has TensorRT-LLM 1.0.3.2510: its arguments are passed through, with a warning."""
    options = (
        *("--set", "models.speller.engine.precision=bf16"),
        *("--set", "models.speller.engine.kv_cache_dtype=null"),
        *("--set", "models.speller.engine.target.release='25.11'"),
        *("--set", "models.speller.engine.target.world=pytorch"),
        *("--set", "models.speller.engine.options={package: {moe_config: {backend: NEW}}}"),
    )
    project = load_project(CHECKOUT, profile="h100", overrides=options[1::2])
    warnings = resolve_build(project, "speller").warnings
    assert any("TensorRT-LLM 1.0.3.2510 were not read" in warning for warning in warnings)
    done = dry_run(*options)
    assert done.returncode == 0, done.stderr
