# SPDX-License-Identifier: Apache-2.0
"""Measures the shipped checkpoint's accuracy in each precision of the TensorRT-LLM builder.

Usage: python benchmarks/accuracy/run.py [--prompts 1000] [--precisions fp8 int4_awq] [--write]

Runs the stage quantise on a CPU, calibrated on texts like the training's, and evaluates its model
on the held-out prompts. --write puts the table into benchmarks/results/accuracy.md. Exit
code 1 if INT8 or FP8 miss their bounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl import Silent
from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.builds.runners import venv_python

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLE = CHECKOUT / "examples" / "number-speller"
DOCUMENT = CHECKOUT / "benchmarks" / "results" / "accuracy.md"
MARKS = ("<!-- benchmarks/accuracy/run.py -->\n", "<!-- end -->\n")
SAMPLES = 512
# The share of the checkpoint's own answers that must be equal token for token.
BOUNDS = {"int8_sq": 0.98, "int8_wo": 0.98, "fp8": 0.99}


@dataclass(frozen=True)
class Case:
    """One row of the table: a precision and further options."""

    precision: str
    kv_cache_dtype: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    world: str = "engine"

    @property
    def label(self) -> str:
        """The row's name."""
        parts = [f"`{self.precision}`"]
        parts += [f"KV cache {self.kv_cache_dtype}"] if self.kv_cache_dtype else []
        parts += [f"{name} {value}" for name, value in self.options.items()]
        return ", ".join(parts)


CASES = (
    Case("fp16"),
    Case("bf16"),
    Case("fp8"),
    Case("fp8", kv_cache_dtype="fp8"),
    Case("int8_sq"),
    Case("int8_sq", options={"smoothquant_alpha": 0.5}),
    Case("int8_sq", kv_cache_dtype="int8"),
    Case("int8_wo"),
    Case("int4_wo"),
    Case("int4_awq"),
    Case("w4a8_awq"),
)


def calibration_texts(file: Path) -> None:
    """Write texts like the training's; the sampler never draws a held-out one."""
    sys.path.insert(0, str(EXAMPLE))
    from dataset import Sampler

    sampler = Sampler(seed=1234)
    examples = [sampler.draw() for _ in range(SAMPLES * 2)]
    texts = [f"{example.prompt}{example.answer}" for example in examples if not example.chat]
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def request(case: Case, data: Path, prompts: int) -> dict[str, Any]:
    """The stage's request, as the host would write it."""
    return {
        "schema": "tritonctl.build/1",
        "model": "speller",
        "checkpoint": str(EXAMPLE / "checkpoint"),
        "precision": case.precision,
        "kv_cache_dtype": case.kv_cache_dtype,
        "options": case.options,
        "limits": {"max_batch_size": 32},
        "stage": "quantise",
        "target": {"release": "26.07", "world": case.world},
        "calibration": {"data": str(data), "samples": SAMPLES, "max_seq_len": 512}
        | {"batch_size": 16, "seed": 1234},
        "evaluation": {"prompts": str(EXAMPLE / "prompts.jsonl"), "max_prompts": prompts}
        | {"max_tokens": 64},
    }


def measure(case: Case, python: Path, folder: Path, prompts: int) -> dict[str, Any]:
    """Quantise once and return the result."""
    work = Path(tempfile.mkdtemp(dir=folder))
    (work / "staging").mkdir()
    asked = request(case, folder / "calibration.txt", prompts)
    (work / "R.json").write_text(json.dumps(asked), encoding="utf-8")
    program = CHECKOUT / "builders" / "tensorrt_llm" / "quantise.py"
    files = ["--request", str(work / "R.json"), "--result", str(work / "S.json")]
    subprocess.run(
        [str(python), str(program), *files],
        cwd=work / "staging",
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    result: dict[str, Any] = json.loads((work / "S.json").read_text(encoding="utf-8"))
    if result["status"] != "ok":
        raise SystemExit(f"{case.label}: {result['problem']}\n{result['remedy']}")
    return result


def row(case: Case, result: dict[str, Any]) -> str:
    """One line of the table."""
    scores, took = result["evaluation"], result["durations_seconds"]
    size = sum(file["size"] for file in result["files"] if file["path"].endswith(".safetensors"))
    change = scores["perplexity"] / scores["reference_perplexity"] - 1
    seconds = sum(took.values()) - took["evaluate"]
    cells = (
        case.label,
        f"{scores['exact_match']:.1%}",
        f"{scores['answer_match']:.1%}",
        f"{scores['mean_kl_divergence']:.1e}",
        f"{change:+.1e}",
        f"{size / 1e6:.2f}",
        f"{seconds:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def head(prompts: int) -> list[str]:
    """The first lines of the table."""
    columns = (
        "precision",
        f"exact match of {prompts:,}",
        "right answers",
        "mean KL divergence",
        "perplexity",
        "MB",
        "s",
    )
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def write(lines: list[str]) -> None:
    """Replace the table in the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    table = "".join(f"{line}\n" for line in lines)
    DOCUMENT.write_text(f"{before}{MARKS[0]}{table}{MARKS[1]}{after}", encoding="utf-8")


def main() -> int:
    """Measure every case; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--precisions", nargs="*", default=None, help="only these")
    parser.add_argument(
        "--write", action="store_true", help="put the table into benchmarks/results/accuracy.md"
    )
    arguments = parser.parse_args()
    builder = builder_named("tensorrt_llm")
    python = venv_python(builder, Silent(), builder.stages[0])
    cases = [
        c for c in CASES if arguments.precisions is None or c.precision in arguments.precisions
    ]
    lines, missed = head(arguments.prompts), []
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as name:
        calibration_texts(Path(name) / "calibration.txt")
        for case in cases:
            result = measure(case, python, Path(name), arguments.prompts)
            lines.append(row(case, result))
            print(lines[-1], flush=True)
            if result["evaluation"]["exact_match"] < BOUNDS.get(case.precision, 0):
                missed.append(case.label)
    if arguments.write:
        write(lines)
    print(f"below their bounds: {', '.join(missed)}" if missed else "every bound is kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
