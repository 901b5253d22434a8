# SPDX-License-Identifier: Apache-2.0
"""Read a folder with a compiled TensorRT-LLM engine from its config.json.

Format of `trtllm-build`: https://nvidia.github.io/TensorRT-LLM/legacy/architecture/checkpoint.html
and `Engine.save` in tensorrt_llm/builder.py (1.2). The module never opens the engines themselves.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 4 << 20
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
class CompiledEngine:
    """An engine folder."""

    folder: Path
    read_error: str | None = (
        None  # the reason if config.json is unreadable; the rest is unknown then
    )
    version: str | None = None
    build: Mapping[str, Any] = field(default_factory=dict)  # build_config
    plugins: Mapping[str, Any] = field(default_factory=dict)  # plugin_config of build_config
    pretrained: Mapping[str, Any] = field(default_factory=dict)  # pretrained_config
    ranks: frozenset[int] = frozenset()  # numbers of the engine files, one per GPU

    def number(self, name: str) -> int | None:
        """Return a whole number of build_config, such as max_batch_size; None for anything else."""
        return whole_number_or_none(self.build.get(name))

    @property
    def world_size(self) -> int | None:
        """The number of GPUs of one instance."""
        mapping = _object(self.pretrained.get("mapping"))
        parts = [
            whole_number_or_none(mapping.get(name, 1)) for name in ("tp_size", "pp_size", "cp_size")
        ]
        product = 1
        for part in parts:
            product *= part or 0
        return whole_number_or_none(mapping.get("world_size")) or product or None

    @property
    def on_one_machine(self) -> bool:
        """Whether the engine was built for the GPUs of a single machine."""
        per_node = (
            whole_number_or_none(_object(self.pretrained.get("mapping")).get("gpus_per_node")) or 8
        )
        return (self.world_size or 1) <= per_node

    @property
    def paged_context(self) -> bool | None:
        """Whether the engine was built with use_paged_context_fmha; None if unknown."""
        value = self.plugins.get("use_paged_context_fmha")
        return value if isinstance(value, bool) else None

    @property
    def speculation(self) -> str | None:
        """The kind of speculative decoding the engine was built for; None if unknown."""
        value = self.build.get("speculative_decoding_mode")
        if isinstance(value, str):
            return value.rpartition(".")[2].upper()
        return _SPECULATION.get(whole_number_or_none(value) or 0)


def whole_number_or_none(value: object) -> int | None:
    """Return a whole number unchanged; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_engine(folder: Path) -> CompiledEngine | None:
    """Return the engine in a folder, or None without an engine or read permission."""
    file = folder / "config.json"
    try:
        status = file.stat()
    except (OSError, ValueError):  # ValueError: a name with a NUL in it
        return None
    read = read_json(file, status.st_mode)
    if isinstance(read, str):
        return CompiledEngine(folder, read_error=read) if _ranks(folder) else None
    if not {"build_config", "pretrained_config"} <= set(read):
        return None
    build = _object(read["build_config"])
    version = read.get("version")
    return CompiledEngine(
        folder,
        version=version if isinstance(version, str) else None,
        build=build,
        plugins=_object(build.get("plugin_config")),
        pretrained=_object(read["pretrained_config"]),
        ranks=_ranks(folder),
    )


def read_json(file: Path, stat_mode: int | None = None) -> dict[str, Any] | str:
    """Return the JSON object of a file; a str is the text of an error.

    stat_mode: `st_mode` of a previous stat; None: that of the file now.
    """
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode if stat_mode is None else stat_mode):
            return "it is not a file"
        if status.st_size > MAX_JSON_BYTES:
            return f"it has over {MAX_JSON_BYTES >> 20} MiB"
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
