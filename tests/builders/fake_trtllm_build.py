# SPDX-License-Identifier: Apache-2.0
"""A trtllm-build that takes the real one's arguments and leaves its files, without a GPU.

Arguments, choices and defaults are those of TensorRT-LLM 1.1 and 1.2 (commands/build.py,
plugin/plugin.py): what the real tool refuses, argparse refuses here, with status 2. The changes
that the real tool makes to sizes and settings without a word are made here, too (builder.py,
_common.py), so that a wrong idea of them shows. FAKE_TRTLLM_FAULT makes it fail.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

TYPES = ["auto", "float16", "float32", "bfloat16", "int32", "disable"]
ODD_TYPES = {
    "gemm_plugin": ["auto", "float16", "float32", "bfloat16", "int32", "fp8", "nvfp4", "disable"],
    "gemm_swiglu_plugin": ["fp8", "disable"],
    "low_latency_gemm_plugin": ["fp8", "disable"],
    "low_latency_gemm_swiglu_plugin": ["fp8", "disable"],
    "gemm_allreduce_plugin": ["float16", "bfloat16", "disable"],
}
PLUGINS = (
    "bert_attention_plugin",
    "gpt_attention_plugin",
    "gemm_plugin",
    "gemm_swiglu_plugin",
    "fp8_rowwise_gemm_plugin",
    "lora_plugin",
    "moe_plugin",
    "mamba_conv1d_plugin",
    "nccl_plugin",
    "low_latency_gemm_plugin",
    "low_latency_gemm_swiglu_plugin",
    "gemm_allreduce_plugin",
)
FEATURES = {
    "dora_plugin": False,
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
}
LORA_MODULES = (
    *("attn_qkv", "attn_q", "attn_k", "attn_v", "attn_dense"),
    *("mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate", "mlp_router", "mlp_gate_up"),
    *("cross_attn_qkv", "cross_attn_q", "cross_attn_k", "cross_attn_v", "cross_attn_dense"),
    *("moe_h_to_4h", "moe_4h_to_h", "moe_gate", "moe_router"),
)
FP8_ATTENTION = ("FP8", "W4A8_AWQ", "NVFP4")


def parser() -> argparse.ArgumentParser:
    """The real tool's arguments."""
    made = argparse.ArgumentParser(prog="trtllm-build", allow_abbrev=True)
    for name in ("checkpoint_dir", "model_config", "build_config", "model_cls_file"):
        made.add_argument(f"--{name}")
    made.add_argument("--model_cls_name")
    made.add_argument("--output_dir", default="engine_outputs")
    numbers: dict[str, int | None] = {
        "max_batch_size": 2048,
        "max_input_len": 1024,
        "max_beam_width": 1,
        "max_num_tokens": 8192,
        "opt_num_tokens": None,
        "max_encoder_input_len": 1024,
        "workers": 1,
        "max_lora_rank": 64,
        "max_draft_len": 0,
        "tokens_per_block": 32,
    }
    for name, default in numbers.items():
        made.add_argument(f"--{name}", type=int, default=default)
    made.add_argument("--max_seq_len", "--max_decoder_seq_len", dest="max_seq_len", type=int)
    made.add_argument("--max_prompt_embedding_table_size", "--max_multimodal_len", type=int)
    made.add_argument("--kv_cache_type", choices=["continuous", "paged", "disabled"])
    made.add_argument("--paged_kv_cache")
    made.add_argument("--input_timing_cache")
    made.add_argument("--output_timing_cache", default="model.cache")
    levels = ["layer_names_only", "detailed", "none"]
    made.add_argument("--profiling_verbosity", choices=levels, default="layer_names_only")
    severities = ["internal_error", "error", "warning", "info", "verbose", "debug", "trace"]
    made.add_argument("--log_level", choices=severities, default="info")
    made.add_argument("--visualize_network")
    made.add_argument("--logits_dtype", choices=["float16", "float32"])
    for name in (
        "strip_plan",
        "weight_sparsity",
        "weight_streaming",
        "fast_build",
        "enable_debug_output",
        "dry_run",
        "monitor_memory",
        "gather_context_logits",
        "gather_generation_logits",
        "gather_all_token_logits",
    ):
        made.add_argument(f"--{name}", action="store_true")
    made.add_argument("--lora_dir", nargs="+")
    made.add_argument("--lora_ckpt_source", choices=["hf", "nemo"], default="hf")
    made.add_argument("--lora_target_modules", nargs="+", choices=LORA_MODULES)
    modes = [
        "draft_tokens_external",
        "lookahead_decoding",
        "medusa",
        "explicit_draft_tokens",
        "eagle",
    ]
    made.add_argument("--speculative_decoding_mode", choices=modes)
    for name in PLUGINS:
        made.add_argument(f"--{name}", choices=ODD_TYPES.get(name, TYPES))
    for name, on in FEATURES.items():
        default_word = "enable" if on else "disable"
        made.add_argument(f"--{name}", choices=["enable", "disable"], default=default_word)
    return made


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
    elif algorithm not in FP8_ATTENTION:
        made["use_fp8_context_fmha"] = False
        if cache == "FP8":
            made["use_paged_context_fmha"] = False
    elif made["use_paged_context_fmha"]:
        made["use_fp8_context_fmha"] = cache == "FP8"
    if cache == "INT8":
        made["use_paged_context_fmha"] = False
    if algorithm not in (None, "FP8", "MIXED_PRECISION"):
        made["use_fused_mlp"] = False
    return made | {"tokens_per_block": args.tokens_per_block, "dtype": config["dtype"]}


def sizes(args: argparse.Namespace, config: dict[str, Any]) -> dict[str, int]:
    """The sizes of the engine, as builder.py and _common.py leave them."""
    seq_len = args.max_seq_len or config["max_position_embeddings"]
    tokens = min(args.max_num_tokens, seq_len * args.max_batch_size)
    tokens = max(tokens, args.tokens_per_block)
    if args.speculative_decoding_mode:
        seq_len += args.max_draft_len
        tokens = max(tokens, args.max_batch_size * (args.max_draft_len + 1))
    return {
        "max_input_len": min(args.max_input_len, seq_len),
        "max_seq_len": seq_len,
        "max_batch_size": args.max_batch_size,
        "max_beam_width": args.max_beam_width,
        "max_num_tokens": tokens,
    }


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
    if args.streamingllm == "enable":
        sys.exit("AssertionError: StreamingLLM is no longer supported")
    if fault == "silent":
        return
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "memory":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    if fault == "assert":
        sys.exit("AssertionError: Engine building failed, please check error log.")
    config = json.loads((Path(args.checkpoint_dir) / "config.json").read_text(encoding="utf-8"))
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
    version = "1.1.0" if fault == "version" else os.environ.get("FAKE_TRTLLM_VERSION", "1.2.1")
    engine = {"version": version, "pretrained_config": config, "build_config": build_config}
    (folder / "config.json").write_text(json.dumps(engine), encoding="utf-8")
    Path(args.output_timing_cache).write_bytes(
        b"timings of " + str(args.input_timing_cache).encode()
    )
    log(f"Timing cache serialized to {args.output_timing_cache}")
    log("Total time of building all engines: 00:00:47")


if __name__ == "__main__":
    main()
