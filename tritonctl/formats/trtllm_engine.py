# SPDX-License-Identifier: Apache-2.0
"""A folder with a compiled TensorRT-LLM engine, as its config.json describes it.

What `trtllm-build` writes: https://nvidia.github.io/TensorRT-LLM/legacy/architecture/checkpoint.html
and `Engine.save` in tensorrt_llm/builder.py (1.2). The engines themselves are never opened.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LARGEST_JSON = 4 << 20
# tensorrt_llm.models.SpeculativeDecodingMode, whose members are bits.
_SPECULATION = {
    1: "NONE",
    2: "DRAFT_TOKENS_EXTERNAL",
    4: "MEDUSA",
    8: "LOOKAHEAD_DECODING",
    16: "EXPLICIT_DRAFT_TOKENS",
    32: "EAGLE",
}
_RANK = re.compile(r"rank([0-9]{1,9})\.engine\Z")


@dataclass(frozen=True)
class Engine:
    """An engine folder. `broken`: why its config.json could not be read; the rest is unknown then.

    build, plugins, pretrained: build_config, its plugin_config, and pretrained_config as they are.
    ranks: the numbers of the engine files in the folder, one per GPU.
    """

    folder: Path
    broken: str | None = None
    version: str | None = None
    build: Mapping[str, Any] = field(default_factory=dict)
    plugins: Mapping[str, Any] = field(default_factory=dict)
    pretrained: Mapping[str, Any] = field(default_factory=dict)
    ranks: frozenset[int] = frozenset()

    def number(self, name: str) -> int | None:
        """A whole number of build_config, such as max_batch_size; None for anything else."""
        return whole(self.build.get(name))

    @property
    def world_size(self) -> int | None:
        """How many GPUs one instance needs."""
        mapping = _object(self.pretrained.get("mapping"))
        parts = [whole(mapping.get(name, 1)) for name in ("tp_size", "pp_size", "cp_size")]
        product = 1
        for part in parts:
            product *= part or 0
        return whole(mapping.get("world_size")) or product or None

    @property
    def on_one_machine(self) -> bool:
        """Whether it was built for the GPUs of a single machine."""
        per_node = whole(_object(self.pretrained.get("mapping")).get("gpus_per_node")) or 8
        return (self.world_size or 1) <= per_node

    @property
    def paged_context(self) -> bool | None:
        """Whether it was built with use_paged_context_fmha; None where it does not say."""
        value = self.plugins.get("use_paged_context_fmha")
        return value if isinstance(value, bool) else None

    @property
    def speculation(self) -> str | None:
        """What kind of speculative decoding it was built for; None where it does not say."""
        value = self.build.get("speculative_decoding_mode")
        if isinstance(value, str):
            return value.rpartition(".")[2].upper()
        return _SPECULATION.get(whole(value) or 0)


def whole(value: object) -> int | None:
    """A whole number as it is, anything else as None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def engine_at(folder: Path) -> Engine | None:
    """The engine in a folder; None without one, or where we may not look."""
    file = folder / "config.json"
    try:
        status = file.stat()
    except (OSError, ValueError):  # ValueError: a name with a NUL in it
        return None
    read = read_json(file, status.st_mode)
    if isinstance(read, str):
        return Engine(folder, broken=read) if _ranks(folder) else None
    if not {"build_config", "pretrained_config"} <= set(read):
        return None
    build = _object(read["build_config"])
    version = read.get("version")
    return Engine(
        folder,
        version=version if isinstance(version, str) else None,
        build=build,
        plugins=_object(build.get("plugin_config")),
        pretrained=_object(read["pretrained_config"]),
        ranks=_ranks(folder),
    )


def read_json(file: Path, mode: int | None = None) -> dict[str, Any] | str:
    """A JSON object from a file of a sensible size, or why it holds none."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode if mode is None else mode):
            return "it is not a file"
        if status.st_size > LARGEST_JSON:
            return f"it has over {LARGEST_JSON >> 20} MiB"
        read = json.loads(file.read_bytes())
    except OSError as error:
        return error.strerror or str(error)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:  # not UTF-8, or not JSON
        return f"it is not JSON: {error}"
    return read if isinstance(read, dict) else "it is not a JSON object"


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _ranks(folder: Path) -> frozenset[int]:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return frozenset()
    return frozenset(int(match[1]) for name in names if (match := _RANK.match(name)))
