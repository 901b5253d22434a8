# SPDX-License-Identifier: Apache-2.0
"""Where the ONNX Runtime engine runs its graph, over a stand-in of the library, without Triton."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from textlib.errors import ModelConfigurationError

from tests.modules import module_of

MODEL = Path(__file__).parents[2] / "python_backends" / "onnxruntime_engine" / "model.py"
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
SETTINGS: dict[str, Any] = {
    "intra_op_num_threads": 1,
    "inter_op_num_threads": 1,
    "allow_spinning": False,
}
SETTINGS |= {"execution_mode": "sequential", "graph_optimization_level": "all"}

pytestmark = pytest.mark.usefixtures("triton_utils")


def _module(monkeypatch: pytest.MonkeyPatch, built_for: Sequence[str], *, starts: bool) -> Any:
    """The engine's module; `starts`: whether CUDA's libraries are there, too."""

    class Session:
        def __init__(self, _file: str, _options: Any, providers: list[Any]) -> None:
            asked = [one if isinstance(one, str) else one[0] for one in providers]
            # As ONNX Runtime: what it cannot start it leaves out, and says so in its log.
            self._running = [one for one in asked if one == CPU or starts]

        def get_providers(self) -> list[str]:
            return self._running

        def get_inputs(self) -> list[Any]:
            return [SimpleNamespace(name="x", shape=["n", 3]), SimpleNamespace(name="t", shape=[])]

        get_outputs = get_inputs

        def run(self, names: list[str], arrays: dict[str, Any]) -> list[Any]:
            return [np.array(arrays[name].shape) for name in names]

    onnxruntime: Any = ModuleType("onnxruntime")
    levels = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")
    onnxruntime.GraphOptimizationLevel = SimpleNamespace(**{f"ORT_{name}": 0 for name in levels})
    onnxruntime.ExecutionMode = SimpleNamespace(ORT_SEQUENTIAL=0, ORT_PARALLEL=1)
    entries: dict[str, str] = {}
    options = SimpleNamespace(add_session_config_entry=entries.__setitem__, entries=entries)
    onnxruntime.SessionOptions = lambda: options
    onnxruntime.InferenceSession = Session
    onnxruntime.get_available_providers = lambda: list(built_for)
    onnxruntime.preload_dlls = lambda: None
    onnxruntime.cuda_version = "13.0"
    state: Any = ModuleType("onnxruntime.capi.onnxruntime_pybind11_state")
    state.InvalidArgument = ValueError
    for module in (onnxruntime, ModuleType("onnxruntime.capi"), state):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return module_of(MODEL, "onnxruntime_engine_model")


def _opened(module: Any, kind: str) -> Any:
    args = {"model_name": "m", "model_instance_kind": kind, "model_instance_device_id": "0"}
    args["model_config"] = json.dumps({"instance_group": [{"count": 1}]})
    parameters = SimpleNamespace(settings=lambda _name: SETTINGS)
    return module.OnnxSession("model.onnx", args, parameters)


@pytest.mark.parametrize(
    ("kind", "built_for", "starts"),
    [("CPU", [CPU], False), ("CPU", [CUDA, CPU], False), ("GPU", [CUDA, CPU], True)],
)
def test_a_graph_runs_where_its_instance_is(
    monkeypatch: pytest.MonkeyPatch, kind: str, built_for: list[str], starts: bool
) -> None:
    """On a CPU nothing of CUDA is asked for."""
    session = _opened(_module(monkeypatch, built_for, starts=starts), kind)
    assert session._session.get_providers()[0] == (CUDA if kind == "GPU" else CPU)


@pytest.mark.parametrize(
    ("built_for", "told"),
    [([CPU], "this onnxruntime has no CUDA"), ([CUDA, CPU], "could not start CUDA")],
)
def test_a_gpu_that_is_not_used_is_an_error(
    monkeypatch: pytest.MonkeyPatch, built_for: list[str], told: str
) -> None:
    """ONNX Runtime itself would answer from the CPU, many times slower."""
    with pytest.raises(ModelConfigurationError, match=told):
        _opened(_module(monkeypatch, built_for, starts=False), "GPU")


@pytest.mark.parametrize(
    ("asked", "instances", "threads", "bound"),
    [(0, 1, 3, "2,6;3,7"), (0, 2, 3, None), (2, 1, 2, None), (1, 1, 1, None)],
)
def test_threads_are_bound_where_the_cores_are_the_engine_s(
    monkeypatch: pytest.MonkeyPatch, asked: int, instances: int, threads: int, bound: str | None
) -> None:
    """Each but the caller's, to cores that there are; none where somebody said how many."""
    module = _module(monkeypatch, [CPU], starts=False)
    monkeypatch.setattr(module, "physical_cores", lambda: ((0, 4), (1, 5), (2, 6)))
    options = module.session_options(SETTINGS | {"intra_op_num_threads": asked}, instances)
    assert options.intra_op_num_threads == threads
    assert options.entries.get("session.intra_op_thread_affinities") == bound


def test_the_only_core_has_nobody_to_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is the one thread."""
    module = _module(monkeypatch, [CPU], starts=False)
    monkeypatch.setattr(module, "physical_cores", lambda: ((3,),))
    options = module.session_options(SETTINGS | {"intra_op_num_threads": 0}, 1)
    assert options.intra_op_num_threads == 1
    assert "session.intra_op_thread_affinities" not in options.entries


def test_a_scalar_loses_the_dimension_that_triton_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """[1] from Triton is [] for the graph; other inputs keep their shapes."""
    session = _opened(_module(monkeypatch, [CPU], starts=False), "CPU")
    shapes = session.run({"x": np.zeros((1, 3)), "t": np.zeros(1)}, ["t", "x"])
    assert [list(shape) for shape in shapes] == [[], [1, 3]]
