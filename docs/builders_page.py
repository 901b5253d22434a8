# SPDX-License-Identifier: Apache-2.0
"""Prints docs/reference/builders.md, made of the builders' tables: `make reference`."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from tritonctl.project.compatibility.table import Compatibility, NumberFormat, table

BUILDERS = Path(__file__).parents[1] / "builders"
_HEAD = """\
<!-- Made by `make reference` from builders/*.toml and builders/*/builder.toml: edits are lost. -->

# Builders

`engine.builder` names one; `tritonctl init` chooses it. Architectures, and what is proven where:
[support matrix](support-matrix.md). Fields: [`engine`](tritonctl-yaml.md#engine); options of
[TensorRT-LLM](tensorrt-llm.md). How to write a builder: [the contract](../../builders/README.md).

Each build runs in a separate environment; `tritonctl build --dry-run` prints its commands. It can
compare the engine with the checkpoint on your prompts, and fails below
`evaluation.min_exact_match`. It writes `tritonctl.lock`; `--locked` refuses any other input.
"""
_TARGETS = """\
## Precision and GPU

For `builder: tensorrt_llm`; `engine.target: {release: …, gpu: …}` says which. *yes*: TensorRT-LLM
lists it; *undocumented*: nothing rules it out, `plan` warns; *pytorch*: with `world: pytorch`
only, as `trtllm-build` refuses it; –: `plan` refuses it and names the nearest that fits.
"""
_TENSORRT = """\
`builder: tensorrt` makes fp32, fp16 and int8 for 7.5 and later, fp8 for 8.9 and later. `openvino`
and `onnxruntime` make every precision of theirs on any x86-64 CPU.
"""
_WORLDS = """\
## Precision and world

World `engine`: compiled by `trtllm-build`. World `pytorch`: the quantised checkpoint is loaded as
it is.
"""
_RELEASES = """\
## Releases

`engine.target.release`. Versions are those inside NVIDIA's image with TensorRT-LLM; a driver
older than the one named may do where the image's compatibility package allows. `default` is what
is taken when the project names none. A newer release can be added in a copy of
`compatibility.toml` in the project's own `builders/`.
"""


def page() -> str:
    """The page: builders, then what goes together on GPUs."""
    compatibility = table()
    builders = [
        tomllib.loads(file.read_text(encoding="utf-8"))
        for file in sorted(BUILDERS.glob("*/builder.toml"))
    ]
    parts = [
        _HEAD,
        *_table(["builder", "makes", "tasks", "precisions"], map(_row, builders)),
        _TARGETS,
        *_grid(_made("precisions", compatibility.precisions), compatibility),
        "KV cache, `engine.kv_cache_dtype`; `auto` is the type of the activations:\n",
        *_grid(_made("kv_cache_dtypes", compatibility.kv_cache_dtypes), compatibility),
        _TENSORRT,
        *_gpus(compatibility),
        _WORLDS,
        *_worlds(compatibility),
        _RELEASES,
        *_releases(compatibility),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""


def _row(builder: dict[str, Any]) -> list[str]:
    tasks, precisions = (_code(builder[key]) for key in ("tasks", "precisions"))
    if of_tasks := builder.get("task_precisions"):
        precisions += f"; of tasks {_code(of_tasks)}"
    return [f"`{builder['name']}`", builder["summary"], tasks, precisions]


def _made(field: str, known: Mapping[str, NumberFormat]) -> dict[str, NumberFormat]:
    """Those that the builder makes; the table knows others, of checkpoints quantised elsewhere."""
    builder = tomllib.loads((BUILDERS / "tensorrt_llm/builder.toml").read_text(encoding="utf-8"))
    return {name: known[name] for name in builder[field]}


def _grid(formats: Mapping[str, NumberFormat], compatibility: Compatibility) -> Iterator[str]:
    """Formats against compute capabilities."""
    known = [one for one in compatibility.architectures if one.trtllm]
    head = ["", *(f"{one.compute_capability} {one.name}" for one in known)]
    yield from _table(
        head,
        (
            [f"`{name}`", *(_support(one.compute_capability, chosen) for one in known)]
            for name, chosen in formats.items()
        ),
    )


def _support(capability: str, chosen: NumberFormat) -> str:
    if capability in chosen.listed:
        cuda = chosen.cuda.get(capability)
        return f"yes, CUDA {cuda}" if cuda else "yes"
    if capability not in chosen.unlisted:
        return "–"
    return "pytorch" if capability in chosen.not_compiled else "undocumented"


def _gpus(compatibility: Compatibility) -> Iterator[str]:
    """Names for `engine.target.gpu`, a row per compute capability."""
    generations = {
        one.compute_capability: (one.name, one.cuda) for one in compatibility.architectures
    }
    ordered = sorted(compatibility.gpus, key=lambda gpu: float(gpu.compute_capability))
    rows = []
    for capability, gpus in groupby(ordered, key=lambda gpu: gpu.compute_capability):
        names = ", ".join(f"{gpu.name} ({gpu.memory_gib} GiB)" for gpu in gpus)
        rows.append([capability, *generations[capability], names])
    yield from _table(
        ["compute capability", "generation", "CUDA from", "`engine.target.gpu`"], rows
    )


def _worlds(compatibility: Compatibility) -> Iterator[str]:
    formats = {
        **{f"`{name}`": one for name, one in _made("precisions", compatibility.precisions).items()},
        **{
            f"`kv_cache_dtype: {name}`": one
            for name, one in _made("kv_cache_dtypes", compatibility.kv_cache_dtypes).items()
        },
    }
    yield from _table(
        ["", "engine", "pytorch", "why not"],
        (
            [
                name,
                *("yes" if world in one.worlds else "–" for world in ("engine", "pytorch")),
                one.world_reason,
            ]
            for name, one in formats.items()
        ),
    )


def _releases(compatibility: Compatibility) -> Iterator[str]:
    head = ["release", "Triton", "TensorRT-LLM", "TensorRT", "CUDA", "driver", "worlds"]
    rows = []
    for one in compatibility.releases:
        default = ", default" if one.name == compatibility.default_release else ""
        cells = [one.triton, one.tensorrt_llm, one.tensorrt, one.cuda, one.driver]
        rows.append([one.name + default, *(cell or "–" for cell in cells), ", ".join(one.worlds)])
    yield from _table(head, rows)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(page())
