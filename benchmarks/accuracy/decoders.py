# SPDX-License-Identifier: Apache-2.0
"""Which text-generation architectures of optimum-intel pass the OpenVINO builder's proof.

    python benchmarks/accuracy/decoders.py FOLDER [--only REGEX] [--write]

Every model type of the library's list is built with tiny random weights (decoder_probe.py), in each
variant of VARIANTS, with small and with large attention scores. It passes if all answers equal
those of transformers. FOLDER keeps the results; the next run probes only what is absent there.
Gemma 2 is a control: the exported attention leaves out its cap, so it must not pass. --write: the
page benchmarks/results/decoders.md, else it is printed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tritonctl import Silent
from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.builds.runners import venv_python

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
RESULTS = HERE.parent / "results" / "decoders.md"
LISTING = """
import json
import optimum.exporters.openvino.model_configs
from optimum.exporters.tasks import TasksManager
task = "text-generation-with-past"
print(json.dumps(sorted(TasksManager.get_supported_model_type_for_task(task, "openvino"))))
"""
CONTROL = "gemma2"
# Fields of config.json that change a graph, as checkpoints of the type have them.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "bloom": [{}, {"apply_residual_connection_post_layernorm": True}],
    "cohere": [{}, {"use_qk_norm": True}],
    "falcon": [
        {"multi_query": True, "parallel_attn": True},
        {"new_decoder_architecture": True},
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
        {
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            "num_kv_heads": 4,
        },
    ],
    CONTROL: [{"query_pre_attn_scalar": 32, "attn_logit_softcapping": 5.0}],
    "glm": [{}, {"attention_bias": True}],
    "gpt_bigcode": [{}, {"multi_query": False}],
    "gpt_neo": [{"attention_types": [[["global", "local"], 2]]}],
    "gpt_neox": [{}, {"use_parallel_residual": False}],
    "mpt": [{}, {"attn_config": {"clip_qkv": 2.0, "alibi": True}}],
    "mistral": [{}, {"sliding_window": None}],
    "olmo": [{}, {"clip_qkv": 1.0}],
    "opt": [{}, {"do_layer_norm_before": False, "word_embed_proj_dim": 64}],
    "phi": [{"num_key_value_heads": 4}, {"num_key_value_heads": 4, "qk_layernorm": True}],
    "qwen2": [{}, {"use_sliding_window": True, "max_window_layers": 2}],
    "qwen3": [{}, {"use_sliding_window": True, "max_window_layers": 2}],
    "qwen3_moe": [{"head_dim": 32}],
    "stablelm": [{}, {"use_qkv_bias": True}, {"use_parallel_residual": True, "qk_layernorm": True}],
    "starcoder2": [{}, {"sliding_window": None}],
}
_HEAD = """\
# Text-generation architectures of optimum-intel

Made by `python benchmarks/accuracy/decoders.py FOLDER --write`: each model type of the library's list with
tiny random weights (hidden size 128, 4 layers), built in fp32 by the `openvino` builder and compared with
transformers, token for token: {prompts} prompts, some longer than the windows, with small and with large attention
scores, in every variant. *equal*: all answers of all builds. Gemma 2 is the control that must fail.
Versions: {versions}.
"""  # noqa: E501 - a page


def openvino_python() -> Path:
    """Return the interpreter of the builder's environment."""
    return venv_python(builder_named("openvino"), Silent())


def python_output(code: str) -> Any:
    """Return the JSON that `code` prints last in the builder's environment."""
    done = subprocess.run(
        [openvino_python(), "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def jobs(model_types: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield every build: type, variant, size of the attention scores."""
    for model_type in model_types:
        for config in VARIANTS.get(model_type, [{}]):
            for sharp in (False, True):
                yield {"model_type": model_type, "config": config, "sharp": sharp}


def key(job: dict[str, Any]) -> str:
    """Return the identity of a job."""
    return json.dumps([job["model_type"], job["config"], job["sharp"]], sort_keys=True)


def probe(folder: Path, wanted: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of all jobs; those absent from FOLDER/results.jsonl are probed now."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    results = {key(result): result for result in map(json.loads, lines)}
    absent = [job for job in wanted if key(job) not in results]
    scratch, queue = Path(tempfile.mkdtemp(prefix="run-", dir=folder)), folder / "jobs.jsonl"
    queue.write_text("".join(json.dumps(job) + "\n" for job in absent), encoding="utf-8")
    command = [openvino_python(), HERE / "decoder_probe.py", scratch]
    with queue.open(encoding="utf-8") as stdin:
        process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True)
    with file.open("a", encoding="utf-8") as kept:
        for line in process.stdout or ():
            result = json.loads(line)
            kept.write(line)
            kept.flush()
            results[key(result)] = result
            print(result["model_type"], result["sharp"], result["verdict"], result["reason"][:160])
    if process.wait():
        raise RuntimeError(f"decoder_probe.py ended with {process.returncode}")
    return [results[key(job)] for job in wanted]


def page(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the introduction and a table: the architectures that pass, then the others."""
    builder = CHECKOUT / "builders" / "openvino"
    accepted = tomllib.loads((builder / "builder.toml").read_text(encoding="utf-8"))
    lock = (builder / "requirements.lock").read_text(encoding="utf-8")
    versions = re.findall(r"^((?:openvino-genai|optimum-intel|transformers)==\S+)", lock, re.M)
    yield _HEAD.format(prompts=12, versions=", ".join(v.replace("==", " ") for v in versions))
    yield "\n| model type | class | builds equal | accepted | first reason |\n"
    yield "|---|---|---|---|---|\n"
    types = dict.fromkeys(result["model_type"] for result in results)
    rows = {name: [r for r in results if r["model_type"] == name] for name in types}
    for name in sorted(rows, key=lambda name: (not _passes(rows[name]), name)):
        equal = sum(result["verdict"] == "equal" for result in rows[name])
        other = next((r for r in rows[name] if r["verdict"] != "equal"), None)
        reason = f"{other['verdict']}: {other['reason']}" if other else ""
        architecture = next((r["architecture"] for r in rows[name] if "architecture" in r), "–")
        is_accepted = "yes" if architecture in accepted["architectures"] else "no"
        without_folders = re.sub(r"(/[\w.-]+)+/", "", reason)
        text = re.sub(r"\s+", " ", without_folders).replace("|", "\\|")[:160]
        share = f"{equal} of {len(rows[name])}"
        yield f"| {name} | {architecture} | {share} | {is_accepted} | {text} |\n"


def _passes(results: Sequence[dict[str, Any]]) -> bool:
    return all(result["verdict"] == "equal" for result in results)


def main() -> None:
    """Probe, then print or write the page."""
    parser = argparse.ArgumentParser(description="Probe decoders with the OpenVINO builder.")
    parser.add_argument("folder", type=Path, help="keeps the results")
    parser.add_argument("--only", default="", help="regular expression of model types")
    parser.add_argument("--write", action="store_true", help="write the page of results")
    arguments = parser.parse_args()
    model_types = [name for name in python_output(LISTING) if re.search(arguments.only, name)]
    results = probe(arguments.folder.resolve(), list(jobs(model_types)))
    control = [result for result in results if result["model_type"] == CONTROL]
    if control and _passes(control):
        raise SystemExit("Gemma 2 passed: this probe does not see what it is for")
    text = "".join(page(results))
    if arguments.write:
        RESULTS.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
