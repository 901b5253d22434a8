# SPDX-License-Identifier: Apache-2.0
"""With an NVIDIA GPU: its driver, its nvidia-smi, and nvfp4, which no CPU quantises.

`pytest --run-gpu tests/builders/test_on_gpu.py`; `--gpu-python PYTHON` quantises where ModelOpt is.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.quantising import environment, ok, run
from tritonctl.host.gpus import installed_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.engine]

BUILDERS = Path(__file__).resolve().parents[2] / "builders"
# Copies to the GPU and back, frees, asks for more than there is, and goes on.
DRIVER = """
import numpy as np
from buildlib.problems import BuildError
from cuda_driver import CudaBuffer, CudaDevice
device = CudaDevice()
for dtype in (np.float32, np.float16, np.int64, np.uint8, np.bool_):
    array = np.arange(771).reshape(3, 1, 257).astype(dtype)
    buffer, back = CudaBuffer(device), np.empty_like(array)
    buffer.write(array)
    buffer.read(back)
    assert np.array_equal(array, back), dtype
try:
    device.allocate(1 << 44)
except BuildError as error:
    assert "CUDA_ERROR_OUT_OF_MEMORY" in error.problem, error.problem
else:
    raise AssertionError("16 TiB were given")
device.free(device.allocate(1 << 20))
"""


def test_nvidia_smi_is_understood() -> None:
    """Every field has a value that means something."""
    gpus, reason = installed_gpus()
    assert gpus, reason
    for gpu in gpus:
        assert float(gpu.compute_capability) >= 5.0
        assert gpu.driver.split(".")[0].isdigit()
        assert gpu.memory_mib > 1024


def test_memory_of_the_driver() -> None:
    """Arrays come back as they were; a refusal leaves the device usable."""
    path = [str(BUILDERS / "tensorrt"), str(BUILDERS / "shared")]
    code = f"import sys\nsys.path[:0] = {path!r}\n{DRIVER}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def quantiser(request: pytest.FixtureRequest) -> Path:
    """`--gpu-python` where it has ModelOpt; else the environment of the stage."""
    python = Path(request.config.getoption("--gpu-python"))
    found = subprocess.run([python, "-c", "import modelopt"], capture_output=True, check=False)
    return environment() if found.returncode else python


@pytest.mark.parametrize("world", ["engine", "pytorch"])
def test_nvfp4(quantiser: Path, tmp_path: Path, world: str) -> None:
    """The quantised model still spells, on the GPU that the result names."""
    done = ok(run(quantiser, tmp_path, fresh=True, precision="nvfp4", world=world))
    assert done.result["runtime"]["quant_algo"] == "NVFP4"
    assert done.result["hardware"]["gpu"]
    assert done.result["evaluation"]["exact_match"] == 1.0
