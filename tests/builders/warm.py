# SPDX-License-Identifier: Apache-2.0
"""Programs of builders' environments without their imports, most of a small build's time: the
second and later ones of a test process are forks of one that has the libraries.

Who compares two builds runs one of them in an interpreter of its own: forks share the seed of
hashes.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.engine_cache import LOG_CHARACTERS

HERE = Path(__file__).parent
_HUGGING_FACE = ("transformers.models.auto.modeling_auto", "transformers.modeling_utils")
# By the beginning of an environment's name; programs of others start as users start them.
_LIBRARIES = {
    "builder-onnxruntime-": ("onnxscript", "torch.onnx", "sentence_transformers", *_HUGGING_FACE),
    "builder-openvino-": ("openvino_genai", "optimum.intel", "nncf", *_HUGGING_FACE),
    "builder-tensorrt_llm-quantise-": ("modelopt.torch.quantization", *_HUGGING_FACE),
}


def run_warm(
    python: Path, arguments: Sequence[str | Path], folder: Path, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in `folder`, given `text` on standard input; its output is captured.

    arguments: the program's file first.
    """
    words = list(map(str, arguments))
    name = python.parents[1].name
    libraries = next((own for begin, own in _LIBRARIES.items() if name.startswith(begin)), None)
    if libraries is None:
        return subprocess.run(
            [python, *words],
            cwd=folder,
            input=text,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    with tempfile.TemporaryDirectory() as scratch:
        files = {stream: Path(scratch) / stream for stream in ("stdin", "stdout", "stderr")}
        for file in files.values():
            file.write_text("", encoding="utf-8")
        files["stdin"].write_text(text, encoding="utf-8")
        asked = {"arguments": words, "folder": str(folder), "environment": dict(os.environ)}
        paths = {name: str(file) for name, file in files.items()}
        status = _ask(_process(python, libraries), asked | paths)
        said = {n: files[n].read_text("utf-8", errors="replace") for n in ("stdout", "stderr")}
    return subprocess.CompletedProcess(words, status, **said)


def make_warm(python: Path, *arguments: str | Path, text: str = "") -> None:
    """The same, for what it writes. AssertionError with its words when it fails."""
    done = run_warm(python, arguments, HERE, text)
    assert done.returncode == 0, done.stderr[-LOG_CHARACTERS:]


def _ask(process: subprocess.Popen[str], asked: Mapping[str, Any]) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{json.dumps(asked)}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BaseException:  # as at a test's time limit: the answer comes too late
        process.kill()
        _process.cache_clear()
        raise
    assert answer, f"{process.args!r} ended with {process.wait()}"
    return int(answer)


@cache
def _process(python: Path, libraries: tuple[str, ...]) -> subprocess.Popen[str]:
    """It lives as long as this process of tests: then its standard input ends."""
    process = subprocess.Popen(
        [python, HERE / "warm_process.py", *libraries],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # more are threads, from its import on
    )
    atexit.register(process.communicate)
    return process
