# SPDX-License-Identifier: Apache-2.0
"""Builds one tiny decoder after another with the OpenVINO builder, each in a fork of this process.

    python decoder_probe.py FOLDER < JOBS > RESULTS

Runs in the builder's environment. JOBS, JSON by the line: `model_type`, `config` (changes to the
tiny sizes), `sharp` (attention scores: large or small). RESULTS, JSON by the line: the job with
`verdict` (`equal`, `blind`, `refused`, `no class`, `crashed`, `timeout`), `reason`, `architecture`
and `seconds`. Every build compares the engine with transformers, token for token.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

CHECKOUT = Path(__file__).resolve().parents[2]
BUILDER = CHECKOUT / "builders" / "openvino"
TOKENIZER = CHECKOUT / "examples" / "number-speller" / "checkpoint"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
SECONDS = 240
TOKENS = 24
# Longer than every window below, and short.
PROMPTS = [
    *(f"{number * 7919} in English:" for number in range(6)),
    *(" ".join(str(n * first) for n in range(40)) for first in range(1, 7)),
]
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, WINDOW, EXPERTS, POSITIONS = 128, 4, 2, 32, 4, 16, 4, 512
# The names under which transformers' classes have a size.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim"), HIDDEN),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "hidden_dim"), 2 * HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), HEADS
    ),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), KV_HEADS),
    **dict.fromkeys(("head_dim", "v_head_dim"), HEAD_DIM),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), HEAD_DIM // 2),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), HEAD_DIM),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"), POSITIONS
    ),
    **dict.fromkeys(("sliding_window", "window_size"), WINDOW),
    **dict.fromkeys(
        ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), EXPERTS
    ),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_top_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), HIDDEN // 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}
# Standard deviations by a part of a matrix's name. Attention must decide what comes next: as
# initialised, tied embeddings repeat the last token.
SPREAD = {"embed": 0.05, "wte": 0.05, "wpe": 0.05, "lm_head": 1.5, "embed_out": 1.5}
QUERIES = ("q_proj", "k_proj", "query", "key", "qkv", "Wqkv", "c_attn", "q_a_proj", "kv_a_proj")
QUERY_SPREAD = {False: 0.25, True: 1.0}  # by `sharp`
OTHER_SPREAD, VECTOR_SPREAD = 0.35, 0.15
SEEDS = range(11, 17)


def config_of(model_type: str, changes: dict[str, Any]) -> Any:
    """Return a configuration of tiny sizes. Raises KeyError for a type without a class."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    ids = json.loads((TOKENIZER / "generation_config.json").read_text(encoding="utf-8"))
    vocabulary = json.loads((TOKENIZER / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    keys = kind().to_dict().keys() | getattr(kind, "attribute_map", {}).keys()
    aliases = getattr(kind, "attribute_map", {})
    sizes = {key: size for key, size in SIZES.items() if key in keys and key not in aliases}
    tokens = {key: ids[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return kind(**sizes | tokens | {"vocab_size": vocabulary} | changes)


def random_model(config: Any, seed: int, *, sharp: bool) -> Any:
    """Return a model with random weights."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            noise = torch.randn(weights.shape, generator=generator)
            if weights.ndim < 2:
                weights.add_(noise * VECTOR_SPREAD)  # norms stay near 1, biases near 0
                continue
            spreads = (std for part, std in SPREAD.items() if part in name)
            is_query = any(part in name for part in QUERIES)
            std = next(spreads, QUERY_SPREAD[sharp] if is_query else OTHER_SPREAD)
            weights.copy_(noise * std)
    return model


def write_checkpoint(folder: Path, config: Any, *, sharp: bool) -> str:
    """Save a model whose answers would show a mistake, with the speller's tokenizer.

    Returns:
        "", or why the answers of no such model would prove anything.
    """
    reason = ""
    for seed in SEEDS:
        model = random_model(config, seed, sharp=sharp)
        reason = blindness(model)
        if not reason:
            model.save_pretrained(folder)
            for file in TOKENIZER_FILES:
                shutil.copy(TOKENIZER / file, folder)
            break
    return reason


def blindness(model: Any) -> str:
    """Return why equal answers of this model would prove nothing; "" if they would."""
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))

    def answer(ids: list[int]) -> list[int]:
        with torch.inference_mode():
            made = model.generate(
                torch.tensor([ids]), max_new_tokens=8, min_new_tokens=8, do_sample=False
            )
        return list(made[0, len(ids) :].tolist())

    texts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    whole = [answer(ids) for ids in texts]
    # The last tokens stay; another order of those before must show.
    turned = [answer([*reversed(ids[:-3]), *ids[-3:]]) for ids in texts]
    same = sum(first == second for first, second in zip(whole, turned, strict=True))
    if same > len(texts) // 2:
        return f"{same} of {len(texts)} answers do not depend on the order of the prompt"
    distinct = len({token for tokens in whole for token in tokens})
    if distinct < len(texts) // 2:
        return f"the answers have only {distinct} different tokens"
    return ""


def build(folder: Path, architecture: str) -> tuple[str, str]:
    """Build an engine of folder/checkpoint; returns the verdict and its reason."""
    program = importlib.import_module("build")
    program._SUPPORTED = program.SupportedModels("openvino", [architecture], program.ROPE_TYPES)
    prompts = folder / "prompts.jsonl"
    lines = [json.dumps({"text_input": prompt}) for prompt in PROMPTS]
    prompts.write_text("\n".join(lines), encoding="utf-8")
    request = {
        "schema": "tritonctl.build/1",
        "model": "probe",
        "checkpoint": str(folder / "checkpoint"),
        "precision": "fp32",
        "limits": {"max_batch_size": 8, "max_seq_len": 256},
        "evaluation": {"prompts": str(prompts), "max_tokens": TOKENS, "min_exact_match": 1.0},
    }
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    staging = folder / "staging"
    staging.mkdir()
    os.chdir(staging)
    result = folder / "result.json"
    sys.argv = ["build.py", "--request", str(folder / "request.json"), "--result", str(result)]
    program.run_program(
        program.build, description="", stages=("load", "convert", "compress", "evaluate")
    )
    outcome = json.loads(result.read_text(encoding="utf-8"))
    return ("equal", "") if outcome["status"] == "ok" else ("refused", outcome["problem"])


def probe(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the verdict of one job."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(job["model_type"], ())
    if not names:
        reason = "transformers has no class for it: it runs code of the checkpoint"
        return {"verdict": "no class", "reason": reason}
    architecture = names if isinstance(names, str) else names[0]
    try:
        config = config_of(job["model_type"], job["config"])
        reason = write_checkpoint(folder / "checkpoint", config, sharp=job["sharp"])
    except Exception as error:
        traceback.print_exc()
        return {
            "verdict": "no tiny model",
            "reason": f"{type(error).__name__}: {error}"[:300],
            "architecture": architecture,
        }
    gc.collect()
    if reason:
        return {"verdict": "blind", "reason": reason, "architecture": architecture}
    verdict, reason = build(folder, architecture)
    return {"verdict": verdict, "reason": reason, "architecture": architecture}


def in_fork(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Probe in a child process with a time limit; the export patches its libraries."""
    folder.mkdir(parents=True)
    answer, log = folder / "answer.json", folder / "log.txt"
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        signal.alarm(SECONDS)
        with contextlib.suppress(BaseException):
            answer.write_text(json.dumps(probe(job, folder)), encoding="utf-8")
            os._exit(0)
        traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    seconds = round(time.monotonic() - start, 1)
    if answer.is_file():
        return job | json.loads(answer.read_text(encoding="utf-8")) | {"seconds": seconds}
    number = os.waitstatus_to_exitcode(status)
    verdict = "timeout" if number == -signal.SIGALRM else "crashed"
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    reason = f"status {number}: {''.join(tail)}"[:300]
    return job | {"verdict": verdict, "reason": reason, "seconds": seconds}


def main() -> None:
    """Import what the builds need once, then probe every job."""
    sys.path[:0] = [str(BUILDER), str(BUILDER.parent / "shared")]
    for name in ("openvino_genai", "convert", "evaluate", "build"):
        importlib.import_module(name)
    importlib.import_module("transformers.models.auto.modeling_auto")
    gc.freeze()
    for number, line in enumerate(sys.stdin):
        folder = Path(sys.argv[1]).resolve() / f"{number:03}"
        result = in_fork(json.loads(line), folder)
        for part in ("checkpoint", "staging"):
            shutil.rmtree(folder / part, ignore_errors=True)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
