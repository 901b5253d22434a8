# SPDX-License-Identifier: Apache-2.0
"""The stage package: a checkpoint and the arguments that TensorRT-LLM's PyTorch runtime gets."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import trtllm
from tests.builders.conftest import BUILDERS, CONFIG, modules_of, safetensors, write_json
from tritonctl.engines.builds.contract import BuildResult, read_result

MODULES = (
    "adapters",
    "arguments",
    "build_extra",
    "build_facts",
    "build_options",
    "build_runtime",
    "build_command",
    "build_settings",
    "build_tensors",
    "llm_arguments",
    "rule_check",
    "folders",
    "package",
    "package_facts",
    "package_cache_rules",
    "package_lora_rules",
    "package_rules",
    "package_speculation_rules",
)


@pytest.fixture(scope="module")
def trt() -> Iterator[SimpleNamespace]:
    """The modules of the stage."""
    with modules_of("tensorrt_llm", MODULES) as modules:
        yield modules


def unified_checkpoint(source: Path, algorithm: str | None, cache: str | None = None) -> Path:
    """What the stage quantise leaves for the PyTorch world: `source/checkpoint`."""
    folder = source / "checkpoint"
    folder.mkdir(parents=True)
    write_json(folder / "config.json", CONFIG)
    safetensors(folder / "model.safetensors")
    if algorithm or cache:
        quantisation = {"quant_algo": algorithm, "kv_cache_quant_algo": cache}
        producer = {"name": "modelopt", "version": "0.47.0"}
        record = {"producer": producer, "quantization": quantisation}
        write_json(folder / "hf_quant_config.json", record)
    return folder


def adapter(folder: Path, **settings: Any) -> Path:
    """An adapter as PEFT saves it."""
    folder.mkdir(parents=True)
    usual = {"peft_type": "LORA", "r": 8, "target_modules": ["v_proj", "q_proj"]}
    write_json(folder / "adapter_config.json", usual | settings)
    safetensors(folder / "adapter_model.safetensors")
    (folder / "README.md").write_text("not part of it", encoding="utf-8")
    return folder


def asked(checkpoint: Path, **changes: Any) -> dict[str, Any]:
    """A request for the PyTorch world, its quantised checkpoint made."""
    algorithm = changes.pop("algorithm", "FP8")
    source = checkpoint.parent / "source"
    unified_checkpoint(source, algorithm, changes.pop("cache", None))
    target = {"world": "pytorch", **changes.pop("target", {})}
    given = changes.pop("adapters", {})
    if given:
        folders = [
            str(adapter(checkpoint.parent / place, **settings)) for place, settings in given.items()
        ]
        lora = {"lora_dir": folders, **changes.get("options", {}).get("lora_config", {})}
        changes["options"] = {**changes.get("options", {}), "lora_config": lora}
    return trtllm.request(checkpoint, source, stage="package", target=target, **changes)


def made(trt: SimpleNamespace, checkpoint: Path, **changes: Any) -> Any:
    """The package that a request leads to."""
    write_json(checkpoint.parent / "R.json", asked(checkpoint, **changes))
    return trt.package.make_package(checkpoint.parent / "R.json", dry_run=False)


def options(**values: Any) -> dict[str, Any]:
    """Options of the stage, as changes to the usual request."""
    return {"options": values}


def test_a_checkpoint_is_packaged(checkpoint: Path, tmp_path: Path) -> None:
    """Checkpoint, tokenizer and arguments; no GPU and no library needed."""
    staging = checkpoint.parent / "staging"
    request = asked(checkpoint, kv_cache_dtype="fp8", options={"attn_backend": "TRTLLM"})
    done = trtllm.run_stage("package.py", staging, request, tmp_path)
    assert done.returncode == 0, done.stderr
    result = read_result(staging.parent / "S.json", "tensorrt_llm")
    assert isinstance(result, BuildResult)
    assert [file.path for file in result.files] == [
        "checkpoint/config.json",
        "checkpoint/hf_quant_config.json",
        "checkpoint/model.safetensors",
        "llm_args.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    ]
    arguments = json.loads((staging / "llm_args.json").read_text(encoding="utf-8"))
    assert arguments == {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "max_batch_size": 4,
        "max_num_tokens": 8192,
        "max_seq_len": 64,
        "max_beam_width": 1,
        "trust_remote_code": False,
        "kv_cache_config": {
            "free_gpu_memory_fraction": 0.9,
            "enable_block_reuse": True,
            "dtype": "fp8",
        },
        "cuda_graph_config": {"max_batch_size": 4, "enable_padding": True},
        "attn_backend": "TRTLLM",
        "enable_chunked_prefill": False,
    }
    assert result.runtime["world"] == "pytorch"
    assert result.versions["tensorrt_llm"] == "1.2.1"
    source = checkpoint.parent / "source" / "checkpoint" / "model.safetensors"
    assert (staging / "checkpoint" / "model.safetensors").stat().st_ino == source.stat().st_ino


def test_a_checkpoint_that_is_not_quantised(trt: SimpleNamespace, checkpoint: Path) -> None:
    """bf16 has no hf_quant_config.json."""
    package = made(trt, checkpoint, algorithm=None, precision="bf16")
    trt.package_rules.check(package)
    assert (package.quant_algo, package.kv_cache_quant_algo) == (None, None)


@pytest.mark.parametrize(
    ("given", "graphs"),
    [
        ({}, {"max_batch_size": 4, "enable_padding": True}),
        ({"cuda_graph_config": None}, None),
        ({"cuda_graph_config": {"batch_sizes": [1, 4]}}, {"batch_sizes": [1, 4]}),
        (
            {"cuda_graph_config": {"enable_padding": False}},
            {"max_batch_size": 4, "enable_padding": False},
        ),
    ],
)
def test_cuda_graphs(
    trt: SimpleNamespace, checkpoint: Path, given: dict[str, Any], graphs: dict[str, Any] | None
) -> None:
    """As many as the batch unless the project decides; null switches them off."""
    package = made(trt, checkpoint, options=given)
    trt.package_rules.check(package)
    assert trt.package_facts.runtime_arguments(package)["cuda_graph_config"] == graphs


def test_extra_arguments_pass_through(trt: SimpleNamespace, checkpoint: Path) -> None:
    """What this tritonctl does not know reaches the runtime as it is."""
    package = made(trt, checkpoint, options={"extra": {"new_knob": {"depth": 2}}})
    assert trt.package_facts.runtime_arguments(package)["new_knob"] == {"depth": 2}


def test_long_prompts_are_chunked(trt: SimpleNamespace, checkpoint: Path) -> None:
    """Where a prompt may be longer than a step, unless the project says no."""
    limits = {"max_input_len": 40, "max_num_tokens": 32}
    package = made(trt, checkpoint, limits=limits)
    trt.package_rules.check(package)
    assert trt.package_facts.runtime_arguments(package)["enable_chunked_prefill"] is True


def of_release(version: str) -> dict[str, Any]:
    """A target that is TensorRT-LLM by itself, as changes to the usual request."""
    return {"target": {"release": version, "tensorrt_llm": version, "triton": None}}


NEW, LATER = of_release("1.3.0rc22"), of_release("1.3.0rc29")


def speculates(kind: str, **fields: Any) -> dict[str, Any]:
    """Speculative decoding of a kind, as changes to the usual request."""
    return options(speculative_config={"decoding_type": kind, **fields})


MOE = {"moe_tensor_parallel_size": 2, "moe_expert_parallel_size": 2}
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("world-is-pytorch", {"target": {"world": "engine"}}, "target.world to pytorch"),
    (
        "runtime-is-the-llm-api-s-own",
        {"target": {"tensorrt_llm": "0.21.0"}, "algorithm": None, "precision": "bf16"},
        "25.09",
    ),
    ("runtime-reads-unified-checkpoints", {"target": {"tensorrt_llm": "1.1.0"}}, "26.03"),
    (
        "runtime-executes-the-precision",
        {"algorithm": "W8A8_SQ_PER_CHANNEL", "precision": "int8_sq"},
        "no code for W8A8_SQ_PER_CHANNEL",
    ),
    ("runtime-executes-the-precision", {"algorithm": "W4A16_GPTQ"}, "no code for W4A16_GPTQ"),
    ("precision-is-that-of-the-checkpoint", {"algorithm": "NVFP4"}, "checkpoint is NVFP4"),
    ("kv-cache-fits-the-checkpoint", {"kv_cache_dtype": "int8"}, "kv_cache_dtype to fp8"),
    ("kv-cache-fits-the-checkpoint", {"cache": "FP8"}, "kv_cache_quant_algo FP8"),
    ("kv-cache-fits-the-checkpoint", {"kv_cache_dtype": "nvfp4"}, "kv_cache_quant_algo None"),
    (
        "kv-cache-type-is-said-once",
        options(kv_cache_config={"dtype": "fp8"}),
        "engine.kv_cache_dtype to fp8",
    ),
    (
        "prompt-fits-into-a-step",
        {"limits": {"max_input_len": 40, "max_num_tokens": 32}}
        | options(enable_chunked_prefill=False),
        "enable_chunked_prefill to true",
    ),
    (
        "chunks-are-whole-blocks",
        {"limits": {"max_num_tokens": 40}} | options(enable_chunked_prefill=True),
        "to 32 or 64",
    ),
    (
        "graphs-are-given-in-one-way",
        options(cuda_graph_config={"batch_sizes": [1, 2], "max_batch_size": 4}),
        "end at 2",
    ),
    (
        "graphs-are-given-in-one-way",
        options(cuda_graph_config={"batch_sizes": [1, 4], "max_batch_size": 4}),
        "only where it would choose the same sizes",
    ),
    (
        "graphs-are-given-in-one-way",
        NEW | options(cuda_graph_config={"batch_sizes": [1, 2], "max_batch_size": 4}),
        "end at 2",
    ),
    ("graphs-fit-the-batch", options(cuda_graph_config={"batch_sizes": [8]}), "up to 8"),
    ("graphs-fit-the-batch", options(cuda_graph_config={"max_batch_size": 8}), "up to 8"),
    ("experts-fill-the-gpus", {"limits": {"tp_size": 2}} | options(**MOE), "is 4"),
    (
        "arguments-are-not-ignored",
        NEW | options(kv_cache_config={"sink_token_length": 4}),
        "PyTorch runtime of TensorRT-LLM 1.3.0rc22 ignores it",
    ),
    (
        "arguments-are-not-ignored",
        options(kv_cache_config={"sink_token_length": 0}),
        "Remove engine.options.package.kv_cache_config.sink_token_length",
    ),
    ("speculation-names-its-kind", options(speculative_config={}), "decoding_type"),
    ("speculation-is-of-the-release", speculates("Ngram"), "(did you mean NGram?)"),
    ("speculation-is-of-the-release", speculates("Eagle3"), "to one of MTP, Eagle, NGram"),
    ("speculation-is-of-the-release", NEW | speculates("DraftTarget"), "to Draft_Target."),
    ("speculation-is-of-the-release", NEW | speculates("UserProvided"), "to User_Provided."),
    ("speculation-is-of-the-pytorch-runtime", speculates("Medusa"), "for compiled engines"),
    ("speculation-is-of-the-pytorch-runtime", NEW | speculates("Lookahead"), "to one of MTP"),
    ("speculation-can-be-served", speculates("UserProvided"), "a Python object"),
    ("speculation-can-be-served", NEW | speculates("SaveState"), "to files"),
    (
        "prefill-graphs-are-set-once",
        LATER
        | options(
            prefill_cuda_graph_backend="breakable",
            torch_compile_config={"enable_piecewise_cuda_graph": True},
        ),
        "enable_piecewise_cuda_graph",
    ),
    (
        "prefill-graphs-are-set-once",
        LATER
        | options(
            prefill_capture_num_tokens=[1, 2],
            torch_compile_config={"capture_num_tokens": [1, 4]},
        ),
        "capture_num_tokens and prefill_capture_num_tokens differ",
    ),
    (
        "breakable-graphs-are-neither-compiled-nor-adapted",
        LATER | options(prefill_cuda_graph_backend="breakable", torch_compile_config={}),
        "excludes torch_compile_config",
    ),
    (
        "breakable-graphs-are-neither-compiled-nor-adapted",
        LATER
        | {"adapters": {"a/fr": {}}}
        | options(prefill_cuda_graph_backend="breakable", lora_config={}),
        "excludes lora_config",
    ),
    (
        "disk-cache-has-a-folder",
        LATER | options(kv_cache_config={"disk_cache_size": 1 << 30}),
        "disk_cache_path to a folder",
    ),
    (
        "mamba-interval-is-said-once",
        LATER
        | options(
            kv_cache_config={
                "mamba_state_cache_interval": 0,
                "mamba_state_config": {"periodic_snapshot_interval": 64},
            }
        ),
        "two names of one field",
    ),
    (
        "mamba-snapshots-need-the-second-cache-manager",
        LATER
        | options(
            kv_cache_config={
                "use_kv_cache_manager_v2": False,
                "mamba_state_config": {"additional_snapshot_offsets_from_end": [0]},
            }
        ),
        "use_kv_cache_manager_v2 to auto",
    ),
    ("speculation-has-known-fields", speculates("MTP", depth=1), "not an argument of MTP"),
    (
        "speculation-has-known-fields",
        LATER | speculates("MTP", acceptance_window=8),
        "Set engine.options.package.speculative_config.acceptance_rate_window_size instead.",
    ),
    (
        "speculation-has-known-fields",
        LATER | speculates("MTP", acceptance_rate_threshold=1.5),
        "expected a fraction from 0 to 1",
    ),
    (
        "speculation-names-one-draft-model",
        LATER
        | speculates("Eagle3", max_draft_len=3, speculative_model="/m", speculative_model_dir="/m"),
        "two names of one field",
    ),
    (
        "speculation-is-limited-once",
        LATER | speculates("MTP", max_draft_len=3, max_concurrency=4, draft_len_schedule={"4": 3}),
        "Remove engine.options.package.speculative_config.max_concurrency.",
    ),
    (
        "speculation-schedule-begins-with-the-longest-draft",
        LATER | speculates("MTP", max_draft_len=3, draft_len_schedule={"4": 2, "8": 1}),
        "draft 3 tokens",
    ),
    (
        "speculation-schedule-begins-with-the-longest-draft",
        LATER | speculates("MTP", max_draft_len=3, draft_len_schedule={"4": 3, "8": 4}),
        "4 at most",
    ),
    (
        "speculation-has-what-it-needs",
        LATER | speculates("MTP", max_draft_len=0),
        "MTP drafts at least one token",
    ),
    (
        "speculation-matches-some-tokens",
        LATER | speculates("NGram", max_draft_len=3, max_matching_ngram_size=0),
        "is 0, and NGram matches",
    ),
    (
        "speculation-matches-some-tokens",
        LATER | speculates("SA", max_draft_len=3, max_matching_ngram_size=0),
        "-1 for the longest match",
    ),
    (
        "speculation-pool-is-enabled",
        LATER | speculates("SA", max_draft_len=3, global_pool_size=64),
        "enable_global_pool to true",
    ),
    (
        "speculation-has-one-tree",
        LATER
        | speculates(
            "MTP",
            max_draft_len=3,
            use_dynamic_tree=True,
            dynamic_tree_max_topK=2,
            max_total_draft_tokens=7,
        ),
        "to 3 to 6",
    ),
    (
        "speculation-has-known-fields",
        speculates("Eagle", max_draft_len=3, speculative_model="/m"),
        "(did you mean speculative_model_dir?)",
    ),
    ("speculation-has-what-it-needs", NEW | speculates("NGram"), "max_draft_len (above 0)"),
    (
        "speculation-has-what-it-needs",
        speculates("NGram", max_draft_len=3),
        "needs max_matching_ngram_size",
    ),
    (
        "speculation-has-what-it-needs",
        NEW | speculates("Eagle", speculative_model="/m"),
        "needs max_draft_len",
    ),
    (
        "speculation-has-what-it-needs",
        NEW | speculates("Eagle", max_draft_len=0, speculative_model="/m"),
        "needs max_draft_len",
    ),
    (
        "speculation-has-what-it-needs",
        NEW | speculates("Eagle3", max_draft_len=3),
        "needs speculative_model_dir",
    ),
    (
        "speculation-has-what-it-needs",
        speculates("DraftTarget", max_draft_len=3),
        "needs speculative_model_dir",
    ),
    (
        "speculation-has-one-tree",
        NEW
        | speculates(
            "Eagle",
            max_draft_len=3,
            speculative_model="/m",
            use_dynamic_tree=True,
            eagle_choices=[[0]],
        ),
        "exclude each other",
    ),
    (
        "speculation-has-one-tree",
        NEW | speculates("Eagle", max_draft_len=3, speculative_model="/m", use_dynamic_tree=True),
        "dynamic_tree_max_topK",
    ),
    (
        "lora-graphs-go-without-attention-dp",
        LATER
        | {"adapters": {"a/fr": {}}}
        | options(enable_attention_dp=True, lora_config={"cuda_graph_specialize_lora": True}),
        "exclude each other",
    ),
    ("lora-names-its-adapters", options(enable_lora=True), "lora_dir to the adapters' folders"),
    ("lora-names-its-adapters", options(lora_config={"max_lora_rank": 8}), "lora_dir names none"),
    (
        "lora-is-not-switched-off",
        {"adapters": {"a/fr": {}}} | options(enable_lora=False),
        "Remove engine.options.package.enable_lora",
    ),
    (
        "adapters-are-of-hugging-face",
        options(lora_config={"lora_dir": ["/x.nemo"], "lora_ckpt_source": "nemo"}),
        "is nemo",
    ),
    (
        "adapters-have-different-names",
        {"adapters": {"a/fr": {}, "b/fr": {}}},
        "have the name fr: /",
    ),
    (
        "adapters-fit-max-lora-rank",
        {"adapters": {"a/fr": {"r": 16}}} | options(lora_config={"max_lora_rank": 8}),
        "max_lora_rank to 16 or more",
    ),
    (
        "adapters-fit-max-lora-rank",
        {"adapters": {"a/fr": {"rank_pattern": {"q_proj": 32}}}}
        | options(lora_config={"max_lora_rank": 8}),
        "fr has the rank 32",
    ),
    (
        "adapters-change-layers-that-the-runtime-knows",
        {"adapters": {"a/fr": {"target_modules": ["q_proj", "embed_tokens"]}}},
        "fr changes embed_tokens",
    ),
    (
        "adapters-change-layers-that-the-runtime-knows",
        {"adapters": {"a/fr": {"target_modules": "all-linear"}}},
        "Set engine.options.package.lora_config.lora_target_modules.",
    ),
    (
        "adapters-fit-lora-target-modules",
        {"adapters": {"a/fr": {}}} | options(lora_config={"lora_target_modules": ["attn_q"]}),
        "fr changes attn_v",
    ),
    (
        "several-adapters-replace-no-modules",
        {"adapters": {"a/fr": {}, "a/de": {"modules_to_save": ["lm_head"]}}},
        "de replaces lm_head",
    ),
]


@pytest.mark.parametrize(
    ("rule", "changes", "said"), BROKEN, ids=[f"{row[0]}-{n}" for n, row in enumerate(BROKEN)]
)
def test_rule(
    trt: SimpleNamespace, checkpoint: Path, rule: str, changes: dict[str, Any], said: str
) -> None:
    """The rule's id ends the problem, and the message says what to do."""
    package = made(trt, checkpoint, **changes)
    with pytest.raises(trt.problems.BuildError) as caught:
        trt.package_rules.check(package)
    assert caught.value.problem.endswith(f" [{rule}]")
    assert said in f"{caught.value.problem}\n{caught.value.remedy}"
    assert caught.value.remedy.endswith(".")


def test_every_rule_has_a_test(trt: SimpleNamespace) -> None:
    """A rule without a broken request above is not tested at all."""
    rules = {trt.rule_check.rule_id(rule) for rule in trt.package_rules.RULES}
    assert rules == {rule for rule, _, _ in BROKEN}


PASSING: list[dict[str, Any]] = [
    LATER,
    of_release("1.4.0rc4"),
    LATER | speculates("SA", max_draft_len=3, max_matching_ngram_size=-1),
    LATER | speculates("MTP", max_draft_len=3, use_dynamic_tree=True, dynamic_tree_max_topK=2),
    LATER | speculates("MTP", max_draft_len=3, draft_len_schedule={"4": 3, "8": 1}),
    LATER | options(prefill_cuda_graph_backend="piecewise", torch_compile_config={}),
    LATER | options(kv_cache_config={"disk_cache_size": 1, "disk_cache_path": "/cache"}),
    {"target": {"tensorrt_llm": "1.0.0"}, "algorithm": None, "precision": "fp16"},
    {"cache": "FP8", "kv_cache_dtype": "fp8"},
    {"limits": {"tp_size": 4}} | options(**MOE),
    options(moe_expert_parallel_size=1),
    speculates("NGram", max_draft_len=4, max_matching_ngram_size=2),
    NEW | speculates("NGram", max_draft_len=4),
    speculates("MTP"),
    NEW | speculates("MTP", num_nextn_predict_layers=2),
    speculates("AUTO"),
    speculates("Eagle", max_draft_len=3, speculative_model_dir="/m"),
    NEW | speculates("Eagle", max_draft_len=3, speculative_model="/m"),
    NEW | speculates("Eagle3", max_draft_len=3, speculative_model_dir="/m"),
    speculates("DraftTarget", max_draft_len=3, speculative_model_dir="/m"),
    NEW | speculates("Draft_Target", max_draft_len=3, speculative_model="/m"),
    options(speculative_config=None),
    options(
        cuda_graph_config={
            "batch_sizes": [1, 2, 4],
            "max_batch_size": 4,
            "enable_padding": True,
        }
    ),
    NEW | options(cuda_graph_config={"batch_sizes": [1, 4], "max_batch_size": 4}),
    options(guided_decoding_backend="llguidance"),
    {"algorithm": "W4A16_AWQ", "precision": "int4_awq"},
    {"adapters": {"a/fr": {}, "a/de": {}}} | options(enable_lora=True),
    {"adapters": {"a/fr": {"r": 8}}} | options(lora_config={"max_lora_rank": 8}),
    {"adapters": {"a/fr": {"target_modules": "all-linear"}}}
    | options(lora_config={"lora_target_modules": ["attn_q", "attn_k", "attn_v"]}),
    {"adapters": {"a/fr": {"modules_to_save": ["lm_head"]}}},
    options(enable_lora=False),
    options(lora_config={}),
]


@pytest.mark.parametrize("changes", PASSING)
def test_what_goes_together_passes(
    trt: SimpleNamespace, checkpoint: Path, changes: dict[str, Any]
) -> None:
    """The neighbours of what is refused."""
    trt.package_rules.check(made(trt, checkpoint, **changes))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"kv_cache_confg": {}}, "(did you mean kv_cache_config?)"),
        ({"kv_cache_config": {"free_gpu_memory_fractions": 0.5}}, "free_gpu_memory_fraction?"),
        ({"kv_cache_config": {"max_tokens": 0}}, "a whole number of at least 1"),
        ({"kv_cache_config": {"dtype": "int8"}}, "one of auto, fp8, nvfp4"),
        ({"cuda_graph_config": {"batch_sizes": [1, "2"]}}, "a list of whole numbers"),
        ({"moe_config": {"backend": "CUTLAS"}}, "one of AUTO, CUTLASS"),
        ({"max_batch_size": 4}, "Set engine.max_batch_size instead."),
        ({"stream_interval": 4}, "streams get every id"),
        ({"extra": ["--flag"]}, "expected an object of arguments"),
        ({"extra": {"lora_config": {}}}, "Write engine.options.package.lora_config instead."),
        ({"lora_config": {"lora_dir": "/a"}}, "a list of text"),
        ({"enable_lora": None}, "enable_lora is null, expected true or false"),
        ({"moe_config": None}, "moe_config is null, expected an object"),
        ({"kv_cache_config": {"free_gpu_memory_fraction": None}}, "is null, expected a fraction"),
        ({"cuda_graph_config": {"max_batch_size": None}}, "is null, expected a whole number"),
        ({"extra": {"enable_tqdm": True}}, "is not an argument of tensorrt_llm.LLM of"),
        ({"extra": {"gms_config": {}}}, "is not an argument of tensorrt_llm.LLM of"),
        ({"extra": {"speculative_config": {}}}, "Write engine.options.package.speculative_config"),
        ({"extra": {"cuda_graph_config": {}}}, "Write engine.options.package.cuda_graph_config"),
        ({"extra": {"tensor_parallel_size": 2}}, "Set engine.tp_size instead."),
        ({"attn_backend": "TRTLLM", "extra": {"attn_backend": "x"}}, "repeats attn_backend"),
        ({"enable_attention_dp": 1}, "true or false"),
    ],
)
def test_an_argument_is_refused(trt: SimpleNamespace, raw: dict[str, Any], said: str) -> None:
    """Unknown names with the nearest, wrong values with the right ones."""
    with pytest.raises(trt.problems.BuildError) as caught:
        trt.package_facts.read_package_arguments(raw)
    assert said in f"{caught.value.problem}\n{caught.value.remedy}"
    assert caught.value.remedy.endswith(".")


def test_adapters_are_packaged(checkpoint: Path, tmp_path: Path) -> None:
    """Copied by name, with what the runtime has to prepare; without anything else beside them."""
    staging = checkpoint.parent / "staging"
    given = {"a/fr": {"r": 4}, "b/de": {"r": 16, "target_modules": ["model.0.down_proj"]}}
    request = asked(checkpoint, adapters=given, options={"lora_config": {"max_loras": 1}})
    done = trtllm.run_stage("package.py", staging, request, tmp_path)
    assert done.returncode == 0, done.stderr
    result = read_result(staging.parent / "S.json", "tensorrt_llm")
    assert isinstance(result, BuildResult)
    assert result.runtime["lora_adapters"] == {"fr": "lora/fr", "de": "lora/de"}
    assert [file.path for file in result.files if file.path.startswith("lora/")] == [
        "lora/de/adapter_config.json",
        "lora/de/adapter_model.safetensors",
        "lora/fr/adapter_config.json",
        "lora/fr/adapter_model.safetensors",
    ]
    arguments = json.loads((staging / "llm_args.json").read_text(encoding="utf-8"))
    assert arguments["enable_lora"] is True
    assert arguments["lora_config"] == {
        "max_lora_rank": 16,
        "max_loras": 1,
        "max_cpu_loras": 2,
        "lora_target_modules": ["attn_q", "attn_k", "attn_v", "mlp_4h_to_h"],
    }
    copied = staging / "lora" / "fr" / "adapter_model.safetensors"
    original = checkpoint.parent / "a" / "fr" / "adapter_model.safetensors"
    assert copied.read_bytes() == original.read_bytes()
    assert copied.stat().st_ino != original.stat().st_ino


def _without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def _cut_short(folder: Path) -> None:
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def _settings(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "adapter_config.json").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "is not a folder"),
        (_without("adapter_config.json"), "adapter_config.json: cannot be read"),
        (_without("adapter_model.safetensors"), "has no adapter_model.safetensors"),
        (_pickled, "as a Python pickle only"),
        (_cut_short, "is half-downloaded"),
        (_settings("{"), "is not valid JSON"),
        (_settings("{}"), "has no rank `r`"),
        (_settings('{"r": true}'), "has no rank `r`"),
        (_settings('{"r": 0}'), "has no rank `r`"),
        (_settings('{"peft_type": "LOHA", "r": 8}'), "peft_type is 'LOHA'"),
    ],
)
def test_a_folder_without_an_adapter_is_refused(
    trt: SimpleNamespace, tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    """Before anything is copied, with the place and what to do."""
    folder = adapter(tmp_path / "fr")
    damage(folder)
    with pytest.raises(trt.problems.BuildError) as caught:
        trt.adapters.read_adapters({"lora_dir": [str(folder)]})
    assert str(folder) in caught.value.problem
    assert said in caught.value.problem
    assert caught.value.remedy.endswith(".")


@pytest.mark.parametrize("place", ["adapters/fr", "/adapters/..", "/", "/adapters/.fr"])
def test_a_place_without_a_name_is_refused(trt: SimpleNamespace, place: str) -> None:
    """Relative to what? And called how?"""
    with pytest.raises(trt.problems.BuildError, match="absolute path of a folder whose name"):
        trt.adapters.read_adapters({"lora_dir": [place]})


def test_a_checkpoint_for_engines_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    """The two halves' checkpoints look alike from outside."""
    source = checkpoint.parent / "source"
    trtllm.quantised_checkpoint(source)
    request = trtllm.request(checkpoint, source, stage="package", target={"world": "pytorch"})
    staging = checkpoint.parent / "staging"
    assert trtllm.run_stage("package.py", staging, request, tmp_path).returncode == 1
    assert "is a checkpoint for trtllm-build" in trtllm.result_of(staging)["problem"]


def test_truncated_weights_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    """Before anything is linked."""
    request = asked(checkpoint)
    weights = checkpoint.parent / "source" / "checkpoint" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    staging = checkpoint.parent / "staging"
    assert trtllm.run_stage("package.py", staging, request, tmp_path).returncode == 1
    assert "is half-downloaded" in trtllm.result_of(staging)["problem"]
    assert list(staging.iterdir()) == []


def test_print_commands_checks_alone(checkpoint: Path, tmp_path: Path) -> None:
    """Before anything is quantised: nothing would be run, but what would fail is said."""
    source, staging = checkpoint.parent / "source", checkpoint.parent / "staging"
    for precision, status in (("fp8", 0), ("int8_sq", 1)):
        request = trtllm.request(checkpoint, source, precision=precision, stage="package")
        request["target"]["world"] = "pytorch"
        done = trtllm.run_stage("package.py", staging, request, tmp_path, "--print-commands")
        assert (done.returncode, done.stdout) == (status, "")
        assert ("[runtime-executes-the-precision]" in done.stderr) == bool(status)
    assert list(staging.iterdir()) == []


def test_weights_are_readable_to_the_server(trt: SimpleNamespace, tmp_path: Path) -> None:
    """As the folder they lie in, whatever the library that wrote them thinks."""
    for mode, expected in ((0o755, 0o644), (0o700, 0o600)):
        folder = tmp_path / oct(mode)
        (folder / "sub").mkdir(parents=True)
        weights = folder / "sub" / "model.safetensors"
        safetensors(weights)
        weights.chmod(0o600)
        weights.parent.chmod(mode)
        trt.artefact.grant_read_access(folder)
        assert weights.stat().st_mode & 0o777 == expected


def test_the_documentation_has_every_rule(trt: SimpleNamespace) -> None:
    """tensorrt-llm.md has a row for each rule of this stage, in the order they are asked."""
    text = (BUILDERS.parent / "docs" / "reference" / "tensorrt-llm.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| package \| `([a-z0-9-]+)` \|", text, flags=re.MULTILINE)
    assert rows == [trt.rule_check.rule_id(rule) for rule in trt.package_rules.RULES]


@pytest.mark.parametrize(
    ("version", "refused"), [("1.2.1", False), ("1.3.0rc22", True), ("1.4.0rc1", True)]
)
def test_fields_end_with_a_release(trt: SimpleNamespace, version: str, refused: bool) -> None:
    """onboard_blocks is a field of KvCacheConfig up to 1.2.1, and of no later one that we know."""
    given = {"kv_cache_config": {"onboard_blocks": False}}
    if not refused:
        assert trt.package_facts.read_package_arguments(given, version) == (given, {})
        return
    with pytest.raises(trt.problems.BuildError, match=r"rc22 does not have it any more") as caught:
        trt.package_facts.read_package_arguments(given, version)
    assert "engine.target.release" in caught.value.remedy


def test_choices_grow_with_releases(trt: SimpleNamespace) -> None:
    """A word that a later version added is none of an earlier one."""
    given = {"moe_config": {"backend": "MARLIN"}}
    assert trt.package_facts.read_package_arguments(given, "1.3.0rc22") == (given, {})
    with pytest.raises(trt.problems.BuildError, match="expected one of AUTO, CUTLASS"):
        trt.package_facts.read_package_arguments(given, "1.2.1")
