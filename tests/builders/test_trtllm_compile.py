# SPDX-License-Identifier: Apache-2.0
"""The stage compile as the host runs it, with a trtllm-build that takes the real arguments."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.builders import trtllm
from tests.builders.conftest import write_json
from tritonctl.engines.builds.contract import BuildResult, read_result

H100 = "0, NVIDIA H100 80GB HBM3, 9.0, 590.44.01, 81559"
L4 = "0, NVIDIA L4, 8.9, 590.44.01, 23034"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the tool and one H100."""
    folder = tmp_path / "bin"
    trtllm.install_programs(folder, H100)
    return folder


def asked(checkpoint: Path, config: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A request, with the quantised checkpoint that it names."""
    source = checkpoint.parent / "source"
    trtllm.quantised_checkpoint(source, **config or {})
    return trtllm.request(checkpoint, source, **changes)


def built(checkpoint: Path, programs: Path, request: dict[str, Any], **env: str) -> BuildResult:
    """The result of a build that succeeds, as the host reads it."""
    staging = checkpoint.parent / "staging"
    done = trtllm.run_stage("compile.py", staging, request, programs, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = read_result(staging.parent / "S.json", "tensorrt_llm")
    assert isinstance(answer, BuildResult)
    return answer


def refused(checkpoint: Path, programs: Path, request: dict[str, Any], **env: str) -> str:
    """Problem and remedy of a build that fails."""
    staging = checkpoint.parent / "staging"
    done = trtllm.run_stage("compile.py", staging, request, programs, **env)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    result = trtllm.result_of(staging)
    assert result["status"] == "failed"
    assert result["remedy"].endswith((".", ")"))
    return f"{result['problem']}\n{result['remedy']}"


def command_of(output: str) -> list[str]:
    """The words of the command that the log shows."""
    line = next(line for line in output.splitlines() if line.startswith("trtllm-build "))
    return shlex.split(line)


def test_an_engine_is_compiled(checkpoint: Path, programs: Path) -> None:
    """Files, limits, runtime, versions and hardware of the result; the artefact's layout."""
    result = built(checkpoint, programs, asked(checkpoint))
    staging = checkpoint.parent / "staging"
    assert [file.path for file in result.files] == [
        "engine/config.json",
        "engine/rank0.engine",
        "llm_args.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    ]
    for file in result.files:
        content = (staging / file.path).read_bytes()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert result.limits.model_dump() == {
        "max_batch_size": 4,
        "max_input_len": 63,
        "max_seq_len": 64,
        "max_num_tokens": 256,
        "max_beam_width": 1,
        "tp_size": 1,
        "pp_size": 1,
    }
    assert result.model is not None
    assert result.model.eos_token_ids == [2]
    assert result.versions["tensorrt_llm"] == "1.2.1"
    assert result.hardware["gpu"] == "NVIDIA H100 80GB HBM3"
    assert result.hardware["compute_capability"] == "9.0"
    assert result.runtime["world"] == "engine"
    assert result.runtime["block_size"] == 32
    assert result.runtime["kv_cache_config"] == {
        "free_gpu_memory_fraction": 0.9,
        "enable_block_reuse": True,
    }
    assert {"input_ids", "input_lengths"} <= {tensor.name for tensor in result.tensors.inputs}
    assert set(result.durations_seconds) == {"check", "compile", "verify"}
    assert not (staging / ".timing").exists()
    arguments = json.loads((staging / "llm_args.json").read_text(encoding="utf-8"))
    assert arguments["max_num_tokens"] == 256
    assert arguments["enable_chunked_prefill"] is False


def test_the_command_says_what_decides_serving(checkpoint: Path, programs: Path) -> None:
    """Sizes and settings are not left to a release's defaults; options keep the tool's names."""
    options = {
        "gemm_plugin": "fp8",
        "workers": 2,
        "weight_sparsity": True,
        "multiple_profiles": "enable",
        "lora_plugin": "auto",
        "lora_target_modules": ["attn_qkv", "mlp_gate"],
        "extra": ["--max_lora=16", "--monitor", "--lora_dir", "/a/fr", "/a/de"],
    }
    request = asked(checkpoint, options=options)
    done = trtllm.run_stage("compile.py", checkpoint.parent / "staging", request, programs)
    words = command_of(done.stdout)
    source = f"{checkpoint.parent / 'source'}/checkpoint"
    assert words[:5] == ["trtllm-build", "--checkpoint_dir", source, "--output_dir", "engine"]
    text = " ".join(words)
    for expected in (
        "--max_batch_size 4 --max_input_len 63 --max_seq_len 64 --max_num_tokens 256",
        "--multiple_profiles enable --use_paged_context_fmha enable --use_fp8_context_fmha disable",
        "--use_fused_mlp enable --tokens_per_block 32 --weight_sparsity",
        "--gemm_plugin fp8",
        "--lora_target_modules attn_qkv mlp_gate",
    ):
        assert expected in text
    for known in ("--max_lora_rank 16 ", "--monitor_memory ", "--lora_dir /a/fr /a/de "):
        assert text.count(known) == 1
    assert text.endswith("--output_timing_cache .timing/fresh.cache")
    assert text.count("--multiple_profiles") == 1
    assert trtllm.result_of(checkpoint.parent / "staging")["status"] == "ok"


def test_settings_follow_the_precision(checkpoint: Path, programs: Path) -> None:
    """What the tool would switch off without a word is said, and served without it."""
    config = {"quantization": {"quant_algo": "W8A8_SQ_PER_CHANNEL", "kv_cache_quant_algo": "INT8"}}
    request = asked(checkpoint, config, precision="int8_sq", kv_cache_dtype="int8")
    result = built(checkpoint, programs, request)
    assert result.runtime["kv_cache_config"]["enable_block_reuse"] is False
    assert result.runtime["use_paged_context_fmha"] is False


def test_two_gpus(checkpoint: Path, programs: Path) -> None:
    """An engine per rank, and progress that counts them."""
    config = {"mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}}
    request = asked(checkpoint, config, limits={"tp_size": 2})
    staging = checkpoint.parent / "staging"
    done = trtllm.run_stage("compile.py", staging, request, programs)
    assert done.returncode == 0, done.stderr
    progress = [line for line in done.stdout.splitlines() if line.startswith("@progress")]
    assert progress[0] == "@progress 5 rank 1 of 2: network constructed"
    assert progress[-1] == "@progress 100 rank 2 of 2: engine written"
    percents = [int(line.split()[1]) for line in progress]
    assert percents == sorted(percents)
    names = [file["path"] for file in trtllm.result_of(staging)["files"]]
    assert {"engine/rank0.engine", "engine/rank1.engine"} <= set(names)
    assert trtllm.result_of(staging)["runtime"]["world_size"] == 2


def test_speculative_decoding_lengthens_the_sequences(checkpoint: Path, programs: Path) -> None:
    """The tool adds the draft to max_seq_len; that is no deviation."""
    options = {"speculative_decoding_mode": "medusa", "max_draft_len": 8}
    config = {"architecture": "MedusaForCausalLM"}
    result = built(checkpoint, programs, asked(checkpoint, config, options=options))
    assert result.limits.max_seq_len == 64


def test_heads_of_the_model_say_how_long_drafts_are(checkpoint: Path, programs: Path) -> None:
    """max_draft_len left out is that of the checkpoint, in sequences and in steps."""
    config = {"architecture": "MedusaForCausalLM", "max_draft_len": 63}
    options = {"speculative_decoding_mode": "medusa"}
    limits = {"max_batch_size": 256}
    request = asked(checkpoint, config, options=options, limits=limits)
    assert built(checkpoint, programs, request).limits.max_num_tokens == 256 * 64


@pytest.mark.parametrize(
    ("options", "limits", "tokens"),
    [
        ({}, {"max_batch_size": 1, "max_seq_len": 16}, 32),
        ({"context_fmha": "disable"}, {"max_batch_size": 1, "max_seq_len": 16}, 16),
        ({"context_fmha": "disable", "tokens_per_block": 128}, {}, 256),
        ({"tokens_per_block": 128}, {"max_batch_size": 1}, 128),
    ],
)
def test_steps_of_short_batches(
    checkpoint: Path,
    programs: Path,
    options: dict[str, Any],
    limits: dict[str, int],
    tokens: int,
) -> None:
    """A step is at least a block, or without context FMHA a prompt, as the tool makes it."""
    request = asked(checkpoint, options=options, limits=limits)
    assert built(checkpoint, programs, request).limits.max_num_tokens == tokens


@pytest.mark.parametrize(
    ("config", "options", "logits"),
    [
        ({}, {}, "float16"),
        ({"logits_dtype": "float32"}, {}, "float32"),
        ({}, {"logits_dtype": "float32"}, "float32"),
        ({}, {"extra": ["--logits", "float32"]}, "float32"),
    ],
)
def test_logits_are_those_of_the_checkpoint(
    checkpoint: Path,
    programs: Path,
    config: dict[str, Any],
    options: dict[str, Any],
    logits: str,
) -> None:
    """float16 in every checkpoint that ModelOpt exports, unless the project says otherwise."""
    result = built(checkpoint, programs, asked(checkpoint, config, options=options))
    assert result.runtime["logits_dtype"] == logits


@pytest.mark.parametrize(
    ("source", "places"),
    [
        ({"lora_dir": ["/a/fr", "/a/de"]}, {"fr": "engine/lora/0", "de": "engine/lora/1"}),
        (
            {"lora_dir": ["/a/fr.nemo", "/a/de.nemo"], "lora_ckpt_source": "nemo"},
            {"fr": "engine/lora/0.nemo", "de": "engine/lora/1.nemo"},
        ),
    ],
)
def test_adapters_lie_where_the_tool_copies_them(
    checkpoint: Path, programs: Path, source: dict[str, Any], places: dict[str, str]
) -> None:
    """Folders of PEFT by number, files of NeMo by number and suffix."""
    request = asked(checkpoint, options={"lora_plugin": "auto", **source})
    assert built(checkpoint, programs, request).runtime["lora_adapters"] == places


def test_timing_cache_is_kept_per_tensorrt_and_gpu(checkpoint: Path, programs: Path) -> None:
    """The first build writes it, the second reads it."""
    cache = checkpoint.parent / "cache"
    request = asked(checkpoint, options={"timing_cache": str(cache)})
    built(checkpoint, programs, request)
    (kept,) = cache.iterdir()
    assert kept.name == "tensorrt-10.14.1.48-9.0-nvidia-h100-80gb-hbm3.cache"
    assert kept.read_bytes() == b"timings of None"
    again = checkpoint.parent / "again"
    done = trtllm.run_stage("compile.py", again, request, programs)
    assert f"--input_timing_cache {kept}" in " ".join(command_of(done.stdout))
    assert kept.read_bytes() == f"timings of {kept}".encode()


FAULTS = [
    ("silent", "ended with status 0 and wrote no engine/config.json; its last lines:"),
    ("killed", "was killed (SIGKILL); its last lines:"),
    ("memory", "lower engine.max_num_tokens or engine.max_batch_size"),
    ("assert", "ended with status 1; its last lines:"),
    ("version", "compiled by TensorRT-LLM 1.1.0, and release 26.07 serves with 1.2.1"),
    ("sizes", "engine.max_batch_size is 4, and trtllm-build compiled 1"),
    ("cache", "KV cache is CONTINUOUS, and in-flight batching needs a paged one"),
    ("ranks", "and engine has none"),
    ("empty", "engine/rank0.engine is empty"),
    ("logits", "logits_dtype is float16, and trtllm-build compiled float32"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS)
def test_a_tool_that_fails(checkpoint: Path, programs: Path, fault: str, said: str) -> None:
    """Each has a name, and the tool's last lines where they help."""
    told = refused(checkpoint, programs, asked(checkpoint), FAKE_TRTLLM_FAULT=fault)
    assert said in told
    if "last lines:" in said:
        assert "Starting TensorRT-LLM init." in told


def test_an_option_that_the_release_does_not_know(checkpoint: Path, programs: Path) -> None:
    """What `extra` passes through is the tool's to judge: its refusal is explained."""
    told = refused(checkpoint, programs, asked(checkpoint, options={"extra": ["--new_flag"]}))
    assert "unrecognized arguments: --new_flag" in told
    assert "remove it from engine.options.compile" in told


def test_the_tool_is_missing(checkpoint: Path, tmp_path: Path) -> None:
    """The image that has it is named."""
    (tmp_path / "empty").mkdir()
    told = refused(checkpoint, tmp_path / "empty", asked(checkpoint))
    assert "trtllm-build is not installed here" in told
    assert "Set engine.runner to container: it is in the image tritonserver:26.07" in told


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (None, "no nvidia-smi"),
        ("", "lists no GPU"),
        ("No devices were found", "answered 'No devices were found'"),
        (L4, "is for compute capability 9.0, and this machine has NVIDIA L4 (8.9)"),
    ],
)
def test_the_gpu_is_missing_or_wrong(
    checkpoint: Path, tmp_path: Path, gpus: str | None, said: str
) -> None:
    """Engines are compiled on the kind of GPU that runs them."""
    folder = tmp_path / "other"
    trtllm.install_programs(folder, gpus)
    assert said in refused(checkpoint, folder, asked(checkpoint))


def test_a_driver_that_does_not_answer(checkpoint: Path, programs: Path) -> None:
    """nvidia-smi's own last line is shown."""
    smi = programs / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n", encoding="utf-8")
    told = refused(checkpoint, programs, asked(checkpoint))
    assert "nvidia-smi found no GPU: NVIDIA-SMI has failed" in told


def test_an_open_target_takes_the_gpu_that_is_there(checkpoint: Path, tmp_path: Path) -> None:
    """And asks the rules about it: INT8 SmoothQuant on an A100 passes, FP8 does not."""
    folder = tmp_path / "other"
    trtllm.install_programs(folder, "0, NVIDIA A100-SXM4-80GB, 8.0, 590.44.01, 81920")
    target = {"gpu": None, "compute_capability": None}
    told = refused(checkpoint, folder, asked(checkpoint, target=target))
    assert "cannot run on compute capability 8.0" in told
    assert "[gpu-runs-the-precision]" in told


def test_a_mixed_machine_compiles_on_the_right_gpu(checkpoint: Path, programs: Path) -> None:
    """The tool sees only GPUs that the engine is for."""
    trtllm.list_gpus(programs, f"{L4}\n1{H100[1:]}")
    tool = programs / "trtllm-build"
    shown = 'print("VISIBLE", os.environ["CUDA_VISIBLE_DEVICES"])\n'
    text = tool.read_text(encoding="utf-8")
    tool.write_text(text.replace("import signal\n", f"import signal\n{shown}", 1), "utf-8")
    staging = checkpoint.parent / "staging"
    done = trtllm.run_stage("compile.py", staging, asked(checkpoint), programs)
    assert "VISIBLE 1" in done.stdout
    assert trtllm.result_of(staging)["hardware"]["gpu"] == "NVIDIA H100 80GB HBM3"


BAD_SOURCES: list[tuple[str, str]] = [
    ("no config", "has no quantised checkpoint to compile"),
    ("hugging face", "has no architecture, so it is not a TensorRT-LLM checkpoint"),
    ("rank", "is for 1 GPUs (mapping.world_size) and has no rank0.safetensors"),
    ("truncated", "is half-downloaded"),
]


@pytest.mark.parametrize(("damage", "said"), BAD_SOURCES)
def test_a_damaged_source(checkpoint: Path, programs: Path, damage: str, said: str) -> None:
    """The quantised checkpoint is looked at before the tool runs."""
    request = asked(checkpoint)
    folder = checkpoint.parent / "source" / "checkpoint"
    weights = folder / "rank0.safetensors"
    if damage == "no config":
        (folder / "config.json").unlink()
    elif damage == "hugging face":
        write_json(folder / "config.json", {"architectures": ["LlamaForCausalLM"]})
    elif damage == "rank":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:-1])
    assert said in refused(checkpoint, programs, request)


def test_print_commands_runs_nothing(checkpoint: Path, tmp_path: Path) -> None:
    """The very command, before anything is quantised, on a machine without tool and GPU."""
    (tmp_path / "empty").mkdir()
    request = trtllm.request(checkpoint, checkpoint.parent / "source")
    staging = checkpoint.parent / "staging"
    done = trtllm.run_stage("compile.py", staging, request, tmp_path / "empty", "--print-commands")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert list(staging.iterdir()) == []
    trtllm.quantised_checkpoint(checkpoint.parent / "source")
    trtllm.install_programs(tmp_path / "bin", H100)
    built_with = trtllm.run_stage("compile.py", staging, request, tmp_path / "bin")
    assert shlex.split(line) == command_of(built_with.stdout)


def test_print_commands_refuses_as_the_build_does(checkpoint: Path, tmp_path: Path) -> None:
    """A dry run finds what would fail."""
    (tmp_path / "empty").mkdir()
    target = {"gpu": "A100-80", "compute_capability": "8.0"}
    request = trtllm.request(checkpoint, None, target=target)
    staging = checkpoint.parent / "staging"
    done = trtllm.run_stage("compile.py", staging, request, tmp_path / "empty", "--print-commands")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "[gpu-runs-the-precision]" in done.stderr
    assert "Set engine.precision to int8_sq" in done.stderr


def test_max_seq_len_beyond_the_positions(checkpoint: Path, programs: Path) -> None:
    """Linear scaling stretches what the model was trained for, llama3's factor does not."""
    request = asked(checkpoint, limits={"max_seq_len": 128})
    assert "was trained for 64 tokens" in refused(checkpoint, programs, request)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    scaling = {"rope_type": "linear", "factor": 2.0}
    write_json(checkpoint / "config.json", {**config, "rope_scaling": scaling})
    assert built(checkpoint, programs, request).limits.max_seq_len == 128
