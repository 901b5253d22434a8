# SPDX-License-Identifier: Apache-2.0
"""Streamed text through four wirings of the same mock decoder, as paired ratios in one run.

Usage: python benchmarks/streaming/run.py [--seconds 6] [--repetitions 3] [--concurrency 8 32 128]
../README.md describes the comparison and its limits.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from bench import CHECKOUT, heading, say  # noqa: E402
from measure import Load, Measured, PerfAnalyzer  # noqa: E402
from prompts import prompts_of, train_tokenizer, write_input  # noqa: E402
from server import started  # noqa: E402
from tritonctl import load_project  # noqa: E402

TOKENS = 64
# Name in the table → model in the repository. The first is what the others are compared with.
STREAMS = {"sample": "sample", "ours": "ours", "inline": "inline", "single": "single_model"}
STREAM_INPUT = ("ours", "inline")  # those with an input `stream`
TOKENISERS = {
    "sample": ("sample_preprocessing", "QUERY", {"REQUEST_OUTPUT_LEN": [TOKENS]}),
    "ours": ("ours_tokenizer", "text_input", {}),
}
Results = dict[tuple[int, str], list[Measured]]


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[64, 512, 4096])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (analyzer, texts):
        streams = measure_streams(analyzer, texts, arguments, Path(folder))
        print_streams(streams)
        rates = measure_tokenisers(analyzer, texts, arguments, Path(folder))
        print_tokenisers(rates)


class Texts:
    """Prompt files by length, made on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tokenizer = train_tokenizer(folder / "tokenizer")

    def file(self, length: int, tensor: str, extra: dict[str, list[object]]) -> Path:
        """perf_analyzer's input for prompts of `length` tokens."""
        file = self._folder / f"{tensor}-{length}-{len(extra)}.json"
        if not file.exists():
            write_input(file, tensor, prompts_of(self._tokenizer, length), extra)
        return file


@contextmanager
def serving(folder: Path) -> Iterator[tuple[PerfAnalyzer, Texts]]:
    """All variants on one real Triton, and the tool that loads them."""
    shutil.copytree(HERE / "project", folder, dirs_exist_ok=True)
    declare_tensors(folder / "python_backends" / "mock_engine" / "backend.toml")
    texts = Texts(folder)
    with started(load_project(folder), folder) as analyzer:
        yield analyzer, texts


def declare_tensors(mock: Path) -> None:
    """Give the mock engine the tensors of a real one."""
    shipped = CHECKOUT / "python_backends" / "openvino_engine" / "backend.toml"
    tensors = shipped.read_text(encoding="utf-8")
    tensors = tensors[tensors.index("[sampling]") :]
    mock.write_text(mock.read_text(encoding="utf-8") + "\n" + tensors, encoding="utf-8")


def measure_streams(
    analyzer: PerfAnalyzer, texts: Texts, arguments: argparse.Namespace, folder: Path
) -> Results:
    """Interleave the variants, in reverse order every second time, so that drift cancels."""
    results: Results = defaultdict(list)
    for concurrency in arguments.concurrency:
        for repetition in range(arguments.repetitions):
            for name in sorted(STREAMS, reverse=bool(repetition % 2)):
                extra: dict[str, list[object]] = {"max_tokens": [TOKENS]}
                if name in STREAM_INPUT:
                    extra["stream"] = [True]
                data = texts.file(64, "text_input", extra)
                load = Load(STREAMS[name], data, concurrency, TOKENS, arguments.seconds)
                results[concurrency, name].append(analyzer.run(load, folder))
    return results


def measure_tokenisers(
    analyzer: PerfAnalyzer, texts: Texts, arguments: argparse.Namespace, folder: Path
) -> Results:
    """Requests per second of the tokenizer step alone, 8 at a time, by prompt length."""
    results: Results = defaultdict(list)
    for length in arguments.prompt_tokens:
        for repetition in range(arguments.repetitions):
            for name in sorted(TOKENISERS, reverse=bool(repetition % 2)):
                model, tensor, extra = TOKENISERS[name]
                data = texts.file(length, tensor, dict(extra))
                load = Load(model, data, 8, 1, arguments.seconds, streaming=False)
                results[length, name].append(analyzer.run(load, folder))
    return results


def ratio(results: Results, key: int, name: str, field: str, base: str = "sample") -> str:
    """Median [lowest to highest] of the paired ratios of a figure to the rival's."""
    pairs = zip(results[key, name], results[key, base], strict=True)
    ratios = [getattr(ours, field) / max(getattr(theirs, field), 1e-9) for ours, theirs in pairs]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f} to {max(ratios):.2f}]"


def median(results: Results, key: int, name: str, field: str) -> float:
    """Median of a figure over the repetitions."""
    return statistics.median(getattr(measured, field) for measured in results[key, name])


def print_streams(results: Results) -> None:
    """The streaming table."""
    fields = ("tokens", "cpu_us", "ttft_p50", "gap_p50", "gap_p99")
    columns = ("streams", "wiring", "tokens/s", "CPU us/token", "TTFT p50 ms", "gap p50 ms",
               "gap p99 ms", "tokens/s to sample", "CPU to sample", "TTFT to sample")  # fmt: skip
    heading("Streamed text", columns)
    for concurrency, name in results:
        figures = [f"{median(results, concurrency, name, field):.1f}" for field in fields]
        ratios = [ratio(results, concurrency, name, f) for f in ("tokens", "cpu_us", "ttft_p50")]
        say(concurrency, name, *figures, *ratios)


def print_tokenisers(results: Results) -> None:
    """The tokenisation table."""
    heading("Tokenisation", ("prompt tokens", "wiring", "requests/s", "to sample"))
    for length, name in results:
        rate = f"{median(results, length, name, 'requests'):.0f}"
        say(length, name, rate, ratio(results, length, name, "requests"))


if __name__ == "__main__":
    main()
