# SPDX-License-Identifier: Apache-2.0
"""Requests held against NVIDIA's parsers, re-created: whatever passes here, they accept unchanged.

The stand-in of trtllm-build and that of tensorrt_llm take their names from the same table as the
builder. What they refuse, and what they silently change, is written down a second time in them.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.builders import trtllm
from tests.builders.conftest import BUILDERS, modules_of, write_json
from tests.builders.test_trtllm_package import MODULES as PACKAGE_MODULES
from tests.builders.test_trtllm_package import unified_checkpoint
from tests.builders.test_trtllm_rules import MODULES as COMPILE_MODULES
from tests.fakes import copy_tensorrt_llm
from tests.modules import module_of

DOCUMENT = BUILDERS.parent / "docs" / "reference" / "tensorrt-llm.md"
ENGINES, CANDIDATE, LATER, NEXT, NEWEST = "1.2.1", "1.3.0rc22", "1.3.0rc29", "1.4.0rc1", "1.4.0rc4"


@pytest.fixture(scope="module")
def trt() -> Iterator[SimpleNamespace]:
    """The modules of both stages."""
    names = tuple(dict.fromkeys((*COMPILE_MODULES, *PACKAGE_MODULES, "document")))
    with modules_of("tensorrt_llm", names) as modules:
        yield modules


# --- the table ------------------------------------------------------------------------------------


def test_every_fact_has_its_source(trt: SimpleNamespace) -> None:
    """Each section of the table, and no other, says in which file of NVIDIA's it was read."""
    table = trt.arguments.read_table()
    assert set(table["sources"]) == set(table) - {"schema", "sources", "releases"}
    for source in table["sources"].values():
        assert set(source) == {"file", "versions"}
    sections = (*table["build"], *table["plugins"])
    assert len(sections) == len(set(sections))


def test_versions_have_an_order(trt: SimpleNamespace) -> None:
    """Candidates come before their release, posts and fourth numbers after nothing."""
    versions = ["0.20.0", "1.0.0", "1.0.3.2510", "1.2.0rc6", "1.2.1", CANDIDATE, LATER, "1.3.0"]
    assert sorted(versions, key=trt.arguments.version_order) == versions
    assert len({trt.arguments.version_order(version) for version in versions}) == len(versions)


def test_the_documentation_has_the_table(trt: SimpleNamespace) -> None:
    """`make arguments` has been run since the table changed."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert trt.document.replace_tables(text) == text


def test_a_page_without_marks_is_refused(trt: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="the page has no <!-- builders/tensorrt_llm"):
        trt.document.replace_tables("# A page\n")


# --- trtllm-build ---------------------------------------------------------------------------------

QUANTISATIONS: dict[str, tuple[str, str | None, str | None]] = {
    "bf16": ("bf16", None, None),
    "fp8": ("fp8", "FP8", None),
    "fp8 and its cache": ("fp8", "FP8", "FP8"),
    "nvfp4": ("nvfp4", "NVFP4", None),
    "int8": ("int8_sq", "W8A8_SQ_PER_CHANNEL", "INT8"),
}
MODELS = ("LlamaForCausalLM", "MixtralForCausalLM", "MedusaForCausalLM", "EagleForCausalLM")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"context_fmha": "disable"},
    {"use_paged_context_fmha": "disable"},
    {"use_paged_context_fmha": "enable"},
    {"use_fp8_context_fmha": "enable"},
    {"use_fp8_context_fmha": "disable"},
    {"use_fused_mlp": "enable"},
    {"extra": ["--use_fused", "disable"]},
    {"paged_state": "enable"},
    {"paged_state": "disable"},
    {"nccl_plugin": "auto"},
    {"nccl_plugin": "float16"},
    {"nccl_plugin": "disable"},
    {"gemm_plugin": "auto"},
    {"gemm_plugin": "nvfp4"},
    {"gemm_plugin": "disable"},
    {"lora_plugin": "auto"},
    {"lora_plugin": "auto", "lora_target_modules": ["attn_q"]},
    {"extra": ["--lora_pl", "auto", "--lora_t", "attn_q", "attn_k"]},
    {"speculative_decoding_mode": "medusa", "max_draft_len": 3},
    {"speculative_decoding_mode": "lookahead_decoding", "max_draft_len": 3},
    {"speculative_decoding_mode": "eagle"},
    {"extra": ["--speculative", "explicit_draft_tokens"]},
    {"multiple_profiles": "enable", "extra": ["--opt", "64"]},
    {"streamingllm": "enable"},
    {"pp_reduce_scatter": "enable"},
    {"extra": ["--context_fmha", "disable", "--tokens_per", "128"]},
    {"extra": ["--model_cls_file", "x.py"]},
    {"logits_dtype": "float32"},
    {"opt_num_tokens": 33},
    {"speculative_decoding_mode": "eagle", "use_paged_context_fmha": "disable"},
)
# Sizes: ordinary ones, short batches, a step given and left open.
SIZES: tuple[dict[str, Any], ...] = (
    {},
    {"max_batch_size": 1, "max_seq_len": 16},
    {"max_batch_size": 1, "max_seq_len": 16, "max_num_tokens": 16},
    {"max_batch_size": 1, "max_seq_len": 16, "max_num_tokens": 32},
    {"max_batch_size": 2, "max_num_tokens": 40, "max_input_len": 50},
)
# Rules about what the tool does itself: each refuses only what it refuses or changes.
ABOUT_THE_TOOL = {
    "paged-context-needs-context-fmha",
    "paged-context-fits-the-kv-cache",
    "fp8-context-needs-an-fp8-precision",
    "fp8-context-goes-with-an-fp8-cache",
    "fused-mlp-needs-fp8-or-no-quantisation",
    "paged-state-needs-a-recurrent-model",
    "nccl-plugin-follows-the-gpus",
    "nvfp4-decides-the-gemm-plugin",
    "lora-plugin-knows-its-modules",
    "drafts-come-from-heads-of-the-model",
    "multiple-profiles-without-opt-num-tokens",
    "best-step-is-within-the-largest",
    "eagle-needs-paged-context",
    "streamingllm-ended-with-1-0",
    "step-is-no-longer-than-a-batch",
    "step-holds-a-block",
}


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The stand-in of trtllm-build, imported."""
    folder = tmp_path_factory.mktemp("tool")
    file = folder / "fake_trtllm_build.py"
    shutil.copyfile(trtllm.FAKE_TOOL, file)
    shutil.copyfile(trtllm.ARGUMENTS, folder / trtllm.ARGUMENTS.name)
    return module_of(file, "fake_trtllm_build")


def config_of(algorithm: str | None, cache: str | None, model: str) -> dict[str, Any]:
    return {
        "architecture": model,
        "quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": cache},
    }


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_the_tool_builds_what_passes(
    trt: SimpleNamespace, tool: ModuleType, checkpoint: Path, quantisation: str, model: str
) -> None:
    """Everything that the rules let through, and nothing that is given comes out changed."""
    precision, algorithm, cache = QUANTISATIONS[quantisation]
    source = checkpoint.parent / "source"
    trtllm.quantised_checkpoint(source, **config_of(algorithm, cache, model))
    config = json.loads((source / "checkpoint" / "config.json").read_text(encoding="utf-8"))
    blackwell = {"gpu": "B200", "compute_capability": "10.0"} if precision == "nvfp4" else {}
    passed, parser = 0, tool.parser()
    for options, sizes in itertools.product(OPTIONS, SIZES):
        asked = trtllm.request(
            checkpoint,
            source,
            precision=precision,
            kv_cache_dtype=cache.lower() if cache else None,
            options=options,
            limits=sizes,
            target=blackwell,
        )
        write_json(checkpoint.parent / "R.json", asked)
        plan = trt.compile.make_plan(checkpoint.parent / "R.json", dry_run=False)
        rule = refusal(trt, plan)
        said = verdict(tool, parser, trt, plan, config)
        if rule is None:
            assert said is None, (options, sizes)
            passed += 1
        elif rule in ABOUT_THE_TOOL:
            assert said is not None, (rule, options, sizes)
    assert passed > 30


def refusal(trt: SimpleNamespace, plan: Any) -> str | None:
    """The id of the rule that refuses a plan."""
    try:
        trt.build_checks.check(plan)
    except trt.problems.BuildError as error:
        return str(error.problem).rpartition("[")[2].removesuffix("]")
    return None


def verdict(
    tool: ModuleType,
    parser: argparse.ArgumentParser,
    trt: SimpleNamespace,
    plan: Any,
    config: dict[str, Any],
) -> str | None:
    """Why the tool would end, or what it would change; None: it builds what is asked."""
    words = trt.build_command.trtllm_build_command(plan, timing_cache=(None, Path("t")))[1:]
    try:
        given = parser.parse_args(_as_asked(words, plan))
        tool.check(given, config)
    except SystemExit as error:
        return str(error)
    sizes = tool.sizes(given, config)
    expected = trt.build_engine.expected_sizes(plan)
    if {name: sizes[name] for name in expected} != expected:
        return f"{sizes} instead of {expected}"
    settings = tool.settings(given, config) | {"opt_num_tokens": sizes["opt_num_tokens"]}
    return next(
        filter(None, (_changed(name, plan, settings) for name in plan.options.values)), None
    )


def _as_asked(words: list[str], plan: Any) -> list[str]:
    """The command with the project's own settings where the builder has settled them already."""
    switches = {
        name: value for name, value in plan.options.values.items() if value in (True, False)
    }
    for name, value in switches.items():
        if f"--{name}" in words and words[-1] != f"--{name}":
            place = words.index(f"--{name}") + 1
            if words[place] in ("enable", "disable"):
                words[place] = "enable" if value else "disable"
    return words


def _changed(name: str, plan: Any, settings: dict[str, Any]) -> str | None:
    if name not in settings:
        return None
    asked: Any = plan.options.values[name]
    # nothing is "auto" in the end, and what is off is nothing
    if asked == "auto" and name == "nccl_plugin":
        return None
    asked = None if asked == "disable" else asked
    return None if settings[name] == asked else f"{name}: {settings[name]} instead of {asked}"


WORDS = (
    ["--max_batch", "9"],
    ["--max_batch_size=9"],
    ["--context_fmha", "disable"],
    ["--context", "disable"],
    ["--model_cls_file", "x.py"],
    ["--model_cls", "x.py"],
    ["--workers", "2"],
    ["--work", "2"],
    ["--workers", "2.5"],
    ["--workers"],
    ["--lora_dir", "/a", "/b", "--strip_plan"],
    ["--lora_dir"],
    ["--gather_c", "--gather_g"],
    ["--gather"],
    ["--use_paged_context_fmha", "yes"],
    ["--use_paged", "enable"],
    ["--use_", "enable"],
    ["--new_flag"],
    ["--new_flag", "value"],
    ["--max_multimodal", "7"],
    ["--auto_parallel", "2"],
    ["--gpus", "2"],
    ["--kv_cache_type", "paged"],
    ["--strip_plan=1"],
)


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
@pytest.mark.parametrize("version", ["1.0.0", ENGINES])
def test_words_are_read_as_argparse_does(
    trt: SimpleNamespace,
    tool: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    version: str,
) -> None:
    """Known words become the same options; what argparse refuses is refused; the rest is left."""
    monkeypatch.setattr(tool, "VERSION", version)
    before = vars(tool.parser().parse_args([]))
    try:
        found, rest = tool.parser().parse_known_args(words)
    except (SystemExit, argparse.ArgumentError):
        with pytest.raises(trt.problems.BuildError):
            trt.build_extra.read_extra(words, (), version)
        return
    changed = {name: value for name, value in vars(found).items() if value != before[name]}
    elsewhere = [name for name in changed if trt.arguments.build_options()[name].elsewhere]
    ended = any(word.removeprefix("--") in trt.arguments.build_options() for word in rest)
    if elsewhere or ended:
        with pytest.raises(trt.problems.BuildError):
            trt.build_extra.read_extra(words, (), version)
        return
    given, left = trt.build_extra.read_extra(words, (), version)
    assert {name: value for name, value in given.items() if value != before[name]} == changed
    assert list(left) == rest


def test_an_option_in_extra_is_that_option(trt: SimpleNamespace) -> None:
    """Every option that can be set, by its name and among the words: one plan, one command."""
    values: dict[str, tuple[Any, list[str]]] = {
        "flag": (True, []),
        "switch": ("disable", ["disable"]),
        "number": (3, ["3"]),
        "text": ("x", ["x"]),
    }
    kinds = (*values, "choice", "list")
    options = trt.arguments.settable_options(kinds)
    assert len(options) > 50
    for name, option in options.items():
        word = option.choices[-1] if option.choices else "/a"
        listed = ([word, word], [word, word]) if option.kind == "list" else (word, [word])
        value, words = values.get(option.kind, listed)
        named = trt.build_options.read_options({name: value})
        among = trt.build_options.read_options({"extra": [f"--{name}", *words]})
        assert (among.values, among.extra) == (named.values, ()), name


# --- tensorrt_llm.LLM -----------------------------------------------------------------------------


def speculates(kind: str, **fields: Any) -> dict[str, Any]:
    return {"speculative_config": {"decoding_type": kind, **fields}}


MODEL_DIR = {"speculative_model_dir": "/m"}
GIVEN: tuple[dict[str, Any], ...] = (
    {},
    {"enable_chunked_prefill": None},
    {"enable_autotuner": None},
    {"attn_backend": None},
    {"moe_config": None},
    {"kv_cache_config": None},
    {"cuda_graph_config": None},
    {"torch_compile_config": None},
    {"speculative_config": None},
    {"allreduce_strategy": None},
    {"gpus_per_node": None},
    {"guided_decoding_backend": None},
    {"guided_decoding_backend": "outlines"},
    {"kv_cache_config": {"enable_block_reuse": None}},
    {"kv_cache_config": {"max_tokens": None, "host_cache_size": None}},
    {"kv_cache_config": {"free_gpu_memory_fraction": 1.5}},
    {"kv_cache_config": {"onboard_blocks": True}},
    {"kv_cache_config": {"use_kv_cache_manager_v2": True}},
    {"kv_cache_config": {"block_reuse_policy": "per_request"}},
    {"kv_cache_config": {"block_reuse_config": {"policy": "per_request"}}},
    {"kv_cache_config": {"block_reuse_config": {"swa_endpoint_rewind_tokens": 8}}},
    {"kv_cache_config": {"use_kv_cache_manager_v2": "auto"}},
    {"kv_cache_config": {"max_util_for_resume": 0}},
    {"kv_cache_config": {"mamba_state_cache_interval": 0}},
    {"kv_cache_config": {"disk_io_threads": 257}},
    {"kv_cache_config": {"a_field_of_tomorrow": 1}},
    {"sampler_type": "TRTLLMSampler"},
    {"sampler_type": "TorchSampler"},
    {"moe_config": {"backend": "WIDEEP"}},
    {"moe_config": {"backend": "MEGAMOE_CUTEDSL"}},
    {"scheduler_config": {"waiting_queue_policy": "priority"}},
    {"scheduler_config": {"context_chunking_policy": "FORCE_CHUNK"}},
    {"scheduler_config": {"capacity_scheduler_policy": None}},
    {"cuda_graph_config": {"batch_sizes": [1, 4], "max_batch_size": 4}},
    {"cuda_graph_config": {"batch_sizes": [1, 2], "max_batch_size": 4}},
    {"cuda_graph_config": {"batch_sizes": [1, 2, 3, 4], "max_batch_size": 4}},
    {"cuda_graph_config": {"batch_sizes": [4, 2, 1], "max_batch_size": 4, "enable_padding": True}},
    {"cuda_graph_config": {"batch_sizes": [1, 4], "max_batch_size": 0}},
    {"cuda_graph_config": {"batch_sizes": None, "max_batch_size": 4}},
    {"cuda_graph_config": {"max_batch_size": None}},
    {"batch_wait_timeout_ms": 1.5, "batch_wait_timeout_iters": 2},
    {"batch_wait_max_tokens_ratio": 0.5, "enable_min_latency": True},
    {"batch_wait_max_tokens_ratio": 1.5},
    {"batch_wait_timeout_iters": -1},
    speculates("MTP"),
    speculates("MTP", num_nextn_predict_layers=2),
    speculates("Medusa", max_draft_len=3),
    speculates("Lookahead", max_window_size=3),
    speculates("Ngram", max_draft_len=3),
    speculates("MTP", acceptance_window=8),
    speculates("MTP", acceptance_rate_window_size=8),
    speculates("MTP", acceptance_rate_threshold=1.5),
    speculates("MTP", speculative_model="/m", **MODEL_DIR),
    speculates("Eagle", max_draft_len=3, greedy_sampling=True, **MODEL_DIR),
    speculates("DSpark", max_draft_len=3),
    speculates("NGram"),
    speculates("NGram", max_draft_len=3),
    speculates("NGram", max_draft_len=3, max_matching_ngram_size=2),
    speculates("Eagle", **MODEL_DIR),
    speculates("Eagle", max_draft_len=0, **MODEL_DIR),
    speculates("Eagle", max_draft_len=3),
    speculates("Eagle", max_draft_len=3, **MODEL_DIR),
    speculates("Eagle", max_draft_len=3, speculative_model="/m"),
    speculates("Eagle", max_draft_len=3, depth=2, **MODEL_DIR),
    speculates("Eagle3", max_draft_len=3, **MODEL_DIR),
    speculates("DraftTarget", max_draft_len=3, **MODEL_DIR),
    speculates("Draft_Target", max_draft_len=3, **MODEL_DIR),
    speculates("Draft_Target", max_draft_len=3),
    speculates("PARD", max_draft_len=3),
    speculates("PARD"),
    speculates("DFlash", max_draft_len=3),
    speculates("SA", max_draft_len=3),
    speculates("AUTO"),
)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports the stand-in of a release of tensorrt_llm."""

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
            del sys.modules[name]

    def choose(version: str) -> ModuleType:
        copy_tensorrt_llm(tmp_path / version, version)
        monkeypatch.syspath_prepend(str(tmp_path / version))
        forget()
        return importlib.import_module("tensorrt_llm.llm_args")

    yield choose
    forget()


@pytest.mark.parametrize("version", [ENGINES, CANDIDATE, LATER, NEXT, NEWEST])
def test_the_runtime_takes_what_passes(
    trt: SimpleNamespace, library: Any, checkpoint: Path, version: str
) -> None:
    """And refuses what the builder refuses: the same requests, the same verdicts."""
    llm_args = library(version)
    source = checkpoint.parent / "source"
    unified_checkpoint(source, "FP8")
    target = {"world": "pytorch", "release": version, "tensorrt_llm": version, "triton": None}
    for given in GIVEN:
        asked = trtllm.request(checkpoint, source, stage="package", target=target, options=given)
        write_json(checkpoint.parent / "R.json", asked)
        ours = _ours(trt, checkpoint.parent / "R.json")
        assert (ours is None) == (_theirs(llm_args, given) is None), (given, ours)


def _ours(trt: SimpleNamespace, file: Path) -> str | None:
    try:
        trt.package_rules.check(trt.package.make_package(file, dry_run=False))
    except trt.problems.BuildError as error:
        return str(error.problem)
    return None


def _theirs(llm_args: ModuleType, given: dict[str, Any]) -> str | None:
    values = dict(given)
    try:
        if values.get("speculative_config") and hasattr(llm_args.DecodingBaseConfig, "from_dict"):
            values["speculative_config"] = llm_args.DecodingBaseConfig.from_dict(
                values["speculative_config"]
            )
        llm_args.check_llm_arguments(values, "pytorch")
    except ValueError as error:
        return str(error)
    return None
