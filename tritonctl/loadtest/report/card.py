# SPDX-License-Identifier: Apache-2.0
"""The card at the top of a report: what was measured, and on what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tritonctl.host.units import human_bytes
from tritonctl.loadtest.report.run import ReportedRun
from tritonctl.loadtest.report.tables import Tile

_MIB = 2**20
# Conversion packages, irrelevant for serving.
_TOOLS = ("torch", "transformers", "optimum", "nncf", "python", "modelopt", "nvidia-modelopt")


def card(run: ReportedRun) -> list[Tile]:
    """Return tiles for model, engine, GPU or CPU, and server; unknown ones are omitted."""
    facts = run.facts
    engine = facts.get("engine") or {}
    tiles = [
        Tile(
            "Model", run.summary.model, _join_parts(engine.get("architecture"), _checkpoint(engine))
        ),
        _engine(engine),
        _limits(engine),
        _processor(facts),
        _server(facts),
    ]
    return [tile for tile in tiles if tile is not None]


def _join_parts(*parts: object) -> str:
    return " · ".join(str(part) for part in parts if part)


def _checkpoint(engine: Mapping[str, Any]) -> str | None:
    name = engine.get("checkpoint")
    return f"from {name}" if name else None


def _engine(engine: Mapping[str, Any]) -> Tile | None:
    if not engine.get("builder"):
        return None
    versions = engine.get("versions") or {}
    serving = [f"{n} {v}" for n, v in versions.items() if not n.startswith(_TOOLS)]
    return Tile(
        "Engine", _join_parts(engine["builder"], engine.get("precision")), _join_parts(*serving)
    )


def _limits(engine: Mapping[str, Any]) -> Tile | None:
    limits = engine.get("limits") or {}
    if not limits.get("max_batch_size"):
        return None
    length = limits.get("max_seq_len")
    tokens = f"of {length:,} tokens at most" if length else ""
    return Tile("Batch", f"{limits['max_batch_size']:,} at once", tokens)


def _processor(facts: Mapping[str, Any]) -> Tile | None:
    """Return the GPUs or, without any, the CPU."""
    if gpus := facts.get("gpus"):
        names = Counter(gpu.get("name") for gpu in gpus)
        value = ", ".join(f"{count} × {name}" for name, count in names.items())
        first = gpus[0]
        memory = first.get("memory_mib")
        room = f"{human_bytes(memory * _MIB)} each" if memory else None
        driver = f"driver {first['driver']}" if first.get("driver") else None
        return Tile("GPU", value, _join_parts(room, driver))
    if "gpus" not in facts:  # the server runs on another machine
        return None
    host = facts.get("host") or {}
    return Tile("CPU, no GPU", facts.get("cpu") or "unknown", _join_parts(*_machine(host)))


def _machine(host: Mapping[str, Any]) -> Iterator[str]:
    if host.get("cpus"):
        yield f"{host['cpus']} cores"
    if host.get("memory_bytes"):
        yield human_bytes(host["memory_bytes"])


def _server(facts: Mapping[str, Any]) -> Tile | None:
    server = facts.get("server") or {}
    if not server.get("name"):
        return None
    tritonctl_version = facts.get("tritonctl")
    value = " ".join(str(server[name]) for name in ("name", "version") if server.get(name))
    return Tile("Server", value, f"tritonctl {tritonctl_version}" if tritonctl_version else "")
