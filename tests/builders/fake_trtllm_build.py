# SPDX-License-Identifier: Apache-2.0
"""A trtllm-build that takes the real one's arguments and leaves its files, without a GPU.

Arguments, choices and defaults are those of TensorRT-LLM 1.1 and 1.2 (commands/build.py,
plugin/plugin.py), from builders/tensorrt_llm/arguments.toml, which lies beside it: what the real
tool refuses, argparse refuses here, with status 2. Its assertions, and the changes that it silently
makes to sizes and settings (builder.py, _common.py), are made here a second time, so that a wrong
idea of them shows. FAKE_TRTLLM_FAULT makes it fail.
"""

import argparse
import json
import os
import re
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

TABLE = tomllib.loads(Path(__file__).with_name("arguments.toml").read_text(encoding="utf-8"))
FEATURES = {
    name: entry["default"] for name, entry in TABLE["plugins"].items() if entry["kind"] == "switch"
}
VERSION = os.environ.get("FAKE_TRTLLM_VERSION", "1.2.1")
MODELS = TABLE["models"]


def parser() -> argparse.ArgumentParser:
    """The real tool's arguments."""
    made = argparse.ArgumentParser(prog="trtllm-build")
    for name, entry in {**TABLE["build"], **TABLE["plugins"]}.items():
        if name != "help" and here(entry):
            add(made, name, entry)
    return made


def here(entry: dict[str, Any]) -> bool:
    """Whether this release has the argument: the table knows arguments that ended."""
    return not ("gone" in entry and place(VERSION) >= place(entry["gone"]))


def place(version: str) -> list[int]:
    """Where a release stands among the others."""
    return [int(number) for number in re.findall(r"\d+", version)]


def add(made: argparse.ArgumentParser, name: str, entry: dict[str, Any]) -> None:
    """One argument, as the real tool adds it."""
    names = [f"--{one}" for one in (name, *entry.get("aliases", ()))]
    kind, default = entry["kind"], entry.get("default")
    if kind == "flag":
        made.add_argument(*names, action="store_true")
        return
    words = entry.get("choices") or TABLE["words"].get(entry.get("choices_of"))
    if kind == "switch":
        words, default = ["enable", "disable"], "enable" if default else "disable"
    if name == "gemm_plugin":
        default = None  # so that "disable" can be told from nothing
    made.add_argument(
        *names,
        dest=name,
        type=int if kind == "number" else str,
        nargs="+" if kind == "list" else None,
        choices=words,
        default=default,
    )


def log(text: str) -> None:
    """A line as the real tool logs it."""
    sys.stdout.write(f"[11/21/2026-12:00:00] [TRT-LLM] [I] {text}\n")
    sys.stdout.flush()


def settings(args: argparse.Namespace, config: dict[str, Any]) -> dict[str, Any]:
    """The plugin settings of the engine, as builder.py leaves them."""
    made = {name: getattr(args, name) == "enable" for name in FEATURES}
    quantisation = config.get("quantization", {})
    algorithm = quantisation.get("quant_algo")
    cache = quantisation.get("kv_cache_quant_algo")
    if made["streamingllm"]:
        made["use_paged_context_fmha"] = False
    if not made["context_fmha"]:
        made["use_fp8_context_fmha"] = made["use_paged_context_fmha"] = False
    elif algorithm not in TABLE["settled"]["fp8_attention"]:
        made["use_fp8_context_fmha"] = False
        if cache == "FP8":
            made["use_paged_context_fmha"] = False
    elif made["use_paged_context_fmha"]:
        made["use_fp8_context_fmha"] = cache == "FP8"
    if cache == "INT8":
        made["use_paged_context_fmha"] = False
    if args.speculative_decoding_mode == "eagle":
        made["use_paged_context_fmha"] = True
    if algorithm not in (None, "FP8", "MIXED_PRECISION"):
        made["use_fused_mlp"] = False
    if config["architecture"] not in MODELS["paged_state"]:
        made["paged_state"] = False
    gemm = None if args.gemm_plugin in (None, "disable") else args.gemm_plugin
    if algorithm == "NVFP4" and args.gemm_plugin != "disable":
        gemm = "nvfp4"
    several = config["mapping"]["world_size"] > 1
    return made | {
        "tokens_per_block": args.tokens_per_block,
        "dtype": config["dtype"],
        "gemm_plugin": gemm,
        "nccl_plugin": config["dtype"] if several else None,
    }


def sizes(args: argparse.Namespace, config: dict[str, Any]) -> dict[str, int]:
    """The sizes of the engine, as builder.py and _common.py leave them."""
    seq_len = args.max_seq_len or config["max_position_embeddings"]
    tokens = min(args.max_num_tokens, seq_len * args.max_batch_size)
    if args.context_fmha == "disable":
        tokens = max(tokens, args.max_input_len)
    elif tokens < args.tokens_per_block:
        tokens = args.tokens_per_block
    if args.speculative_decoding_mode:
        draft_len = args.max_draft_len or config.get("max_draft_len", 0)
        seq_len += draft_len
        tokens = max(tokens, args.max_batch_size * (draft_len + 1))
    best = args.opt_num_tokens
    return {
        "opt_num_tokens": None if best is None else min(best, tokens),
        "max_input_len": min(args.max_input_len, seq_len),
        "max_seq_len": seq_len,
        "max_batch_size": args.max_batch_size,
        "max_beam_width": args.max_beam_width,
        "max_num_tokens": tokens,
    }


def check(args: argparse.Namespace, config: dict[str, Any]) -> None:
    """What the real tool ends with, whatever argparse thought of it."""
    if args.streamingllm == "enable" and place(VERSION) >= place("1.1.0"):
        sys.exit("AssertionError: StreamingLLM is no longer supported")
    lora = args.lora_plugin != "disable"
    if lora and not (args.lora_dir or args.lora_target_modules):
        sys.exit("ValueError: lora_target_modules is empty")
    mode = args.speculative_decoding_mode
    if config["architecture"] not in MODELS.get(str(mode), [config["architecture"]]):
        sys.exit(f"AssertionError: {config['architecture']} has no heads for {mode}")
    if args.multiple_profiles == "enable" and args.opt_num_tokens is not None:
        sys.exit("RuntimeError: multiple_profiles is enabled, while opt_num_tokens is set.")
    if (args.model_cls_file is None) != (args.model_cls_name is None):
        sys.exit("AssertionError: model_cls_name")


def build_rank(folder: Path, rank: int) -> None:
    """One engine, with the log lines that come with it."""
    log("Total time of constructing network from module object 8.19213318824768 seconds")
    log("Total time to initialize the weights in network Unnamed Network 0: 00:00:00")
    log("Build TensorRT engine Unnamed Network 0")
    sys.stdout.write(
        "[11/21/2026-12:00:01] [TRT] [I] Engine generation completed in 15.4 seconds.\n"
    )
    log("Total time of building Unnamed Network 0: 00:00:22")
    log(f"Serializing engine to {folder}/rank{rank}.engine...")
    (folder / f"rank{rank}.engine").write_bytes(b"engine of rank %d" % rank)
    log("Engine serialized. Total time: 00:00:19")


def main() -> None:
    """Build as the arguments say."""
    args = parser().parse_args()
    fault = os.environ.get("FAKE_TRTLLM_FAULT", "")
    log("Starting TensorRT-LLM init.")
    config = json.loads((Path(args.checkpoint_dir) / "config.json").read_text(encoding="utf-8"))
    check(args, config)
    if fault == "silent":
        return
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "memory":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    if fault == "assert":
        sys.exit("AssertionError: Engine building failed, please check error log.")
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    world = config["mapping"]["world_size"]
    for rank in range(world - (fault == "ranks")):
        build_rank(folder, rank)
    if fault == "empty":
        (folder / "rank0.engine").write_bytes(b"")
    plugins = settings(args, config)
    build_config = {**sizes(args, config), "kv_cache_type": "PAGED", "plugin_config": plugins}
    if fault == "cache":
        build_config["kv_cache_type"] = "CONTINUOUS"
    if fault == "sizes":
        build_config["max_batch_size"] = 1
    version = "1.1.0" if fault == "version" else VERSION
    if fault == "logits":
        args.logits_dtype = "float32"
    config["logits_dtype"] = args.logits_dtype or config.get("logits_dtype", "float32")
    engine = {"version": version, "pretrained_config": config, "build_config": build_config}
    (folder / "config.json").write_text(json.dumps(engine), encoding="utf-8")
    Path(args.output_timing_cache).write_bytes(
        b"timings of " + str(args.input_timing_cache).encode()
    )
    log(f"Timing cache serialized to {args.output_timing_cache}")
    log("Total time of building all engines: 00:00:47")


if __name__ == "__main__":
    main()
