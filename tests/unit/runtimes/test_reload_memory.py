# SPDX-License-Identifier: Apache-2.0
"""A second version that does not fit into memory is refused before the reload touches anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.errors import ServerError
from tritonctl.protocol.metrics import Metrics
from tritonctl.runtimes import reload_memory
from tritonctl.runtimes.reload_memory import refuse_low_gpu_memory, refuse_low_host_memory

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

GIB = 1 << 30
MODEL = "speller"


def plan_of(gib: int, *, devices: int = 1) -> Any:
    """An artefact with a file of that size, split among devices."""
    limits = SimpleNamespace(tp_size=devices, pp_size=1)
    result = SimpleNamespace(limits=limits, files=[SimpleNamespace(size=gib * GIB)])
    return SimpleNamespace(
        artefacts={MODEL: SimpleNamespace(manifest=SimpleNamespace(result=result))}
    )


def gpu_metrics(*used: int) -> Metrics:
    """GPUs of 80 GiB each, of which these are in use."""
    lines = ["# TYPE nv_gpu_memory_total_bytes gauge", "# TYPE nv_gpu_memory_used_bytes gauge"]
    for number, gib in enumerate(used):
        lines[1:1] = [f'nv_gpu_memory_total_bytes{{gpu_uuid="{number}"}} {80 * GIB}']
        lines += [f'nv_gpu_memory_used_bytes{{gpu_uuid="{number}"}} {gib * GIB}']
    return Metrics.parse("\n".join(lines) + "\n")


@pytest.mark.parametrize(("free", "fits"), [(2 * GIB, True), (GIB - 1, False), (None, True)])
def test_memory_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, free: int | None, *, fits: bool
) -> None:
    """Both figures are in the error; without figures nothing is refused."""
    monkeypatch.setattr(reload_memory, "model_bytes", lambda *_: GIB)
    monkeypatch.setattr(reload_memory, "available_memory", lambda: free)
    project: Any = None
    if fits:
        refuse_low_host_memory(project, plan_of(1), MODEL)
        return
    with pytest.raises(ServerError, match=r"needs about 1.0 GiB .* 1024.0 MiB are free") as refused:
        refuse_low_host_memory(project, plan_of(1), MODEL)
    assert "`tritonctl down`" in refused.value.remedy


@pytest.mark.parametrize(
    ("gib", "devices", "used", "fits"),
    [
        (16, 1, (40,), True),
        (16, 1, (72,), False),
        (16, 1, (72, 40), True),  # on the other GPU
        (128, 4, (40, 40, 40, 40), True),
        (16, 1, (), True),  # the server says nothing of GPUs
    ],
)
def test_memory_of_gpus(
    sandbox: Sandbox, gib: int, devices: int, used: tuple[int, ...], *, fits: bool
) -> None:
    """An engine's files are the least that a second version needs."""
    sandbox.data["models"][MODEL]["engine"] |= {"builder": "tensorrt_llm", "precision": "fp8"}
    sandbox.data["models"][MODEL]["engine"].pop("options")
    plan = plan_of(gib, devices=devices)
    asked = sandbox.load(), plan, MODEL, lambda: gpu_metrics(*used)
    if fits:
        refuse_low_gpu_memory(*asked)
        return
    with pytest.raises(ServerError, match=r"at least 16.0 GiB of a GPU's .* 8.0 GiB are free"):
        refuse_low_gpu_memory(*asked)


def test_engines_of_the_host_need_no_gpu(sandbox: Sandbox) -> None:
    """Whatever GPUs the machine has."""
    refuse_low_gpu_memory(sandbox.load(), plan_of(16), MODEL, lambda: gpu_metrics(80))
