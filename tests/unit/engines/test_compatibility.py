# SPDX-License-Identifier: Apache-2.0
"""What goes together: each rule of compatibility/rules.py refuses and names the nearest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tritonclient.grpc.model_config_pb2 as model_config
from packaging.version import Version

from tritonctl.errors import ConfigurationError
from tritonctl.host import bundled
from tritonctl.project.compatibility.rules import (
    check_formats,
    fields_unknown_to,
    refuse_driver,
    resolve_target,
)
from tritonctl.project.compatibility.table import (
    BuildTarget,
    Compatibility,
    NumberFormat,
    World,
    architecture_of,
    image_of,
    release_named,
    table,
)

# What a refused pair's remedy must begin with.
Refused = tuple[str, str, str, World, str]


@pytest.fixture(scope="module")
def shipped() -> Compatibility:
    """The table that tritonctl ships."""
    return table()


def target_of(shipped: Compatibility, gpu: str, world: World = "engine") -> BuildTarget:
    """That GPU with the default release."""
    return resolve_target(shipped, gpu=gpu, world=world)


def test_the_table_is_consistent(shipped: Compatibility) -> None:
    """Names are unique, versions fall with releases, every name that is used is defined."""
    names = [release.name for release in shipped.releases]
    assert len(set(names)) == len(names)
    servers = [Version(release.triton) for release in shipped.releases if release.triton]
    assert servers == sorted(servers, reverse=True)
    assert shipped.default_release in names
    capabilities = {entry.compute_capability for entry in shipped.architectures}
    assert {gpu.compute_capability for gpu in shipped.gpus} <= capabilities
    formats: list[tuple[NumberFormat, set[str]]] = [
        *((p, set(shipped.precisions)) for p in shipped.precisions.values()),
        *((k, set(shipped.kv_cache_dtypes)) for k in shipped.kv_cache_dtypes.values()),
    ]
    for chosen, known in formats:
        assert set(chosen.nearest) <= known
        assert {*chosen.listed, *chosen.unlisted, *chosen.not_compiled} <= capabilities
        assert not set(chosen.listed) & set(chosen.unlisted)
        assert chosen.world_reason or set(chosen.worlds) == {"engine", "pytorch"}


def test_releases_as_nvidia_published_them(shipped: Compatibility) -> None:
    """A few rows, and what sets the halves apart."""
    row = release_named("26.07", shipped)
    assert (row.triton, row.tensorrt_llm, row.tensorrt) == ("2.71.0", "1.2.1", "10.14.1.48")
    assert image_of(row, shipped) == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert release_named("25.09", shipped).tensorrt_llm == "1.0.0"
    for release in shipped.releases:
        compiles = "engine" in release.worlds
        version = release.tensorrt_llm
        assert compiles == (version is not None and Version(version) < Version("1.3.0rc21"))
        since_1_0 = version is not None and Version(version) >= Version("1.0.0")
        assert ("pytorch" in release.worlds) == since_1_0


def test_resolve_target_fills_in_every_version(shipped: Compatibility) -> None:
    """A GPU's name is enough; its spelling is forgiven."""
    assert resolve_target(shipped, gpu="h100").model_dump() == {
        "release": "26.07",
        "triton": "2.71.0",
        "tensorrt_llm": "1.2.1",
        "tensorrt": "10.14.1.48",
        "cuda": "13.1.0.036",
        "world": "engine",
        "image": "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3",
        "gpu": "H100",
        "compute_capability": "9.0",
    }
    assert resolve_target(shipped, gpu="rtx4090").compute_capability == "8.9"
    assert resolve_target(shipped, compute_capability="8.6").gpu is None
    stand_alone = resolve_target(shipped, release="1.3.0rc29")
    assert (stand_alone.world, stand_alone.triton) == ("pytorch", None)
    assert stand_alone.image == "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc29"


def test_unknown_release_names_the_nearest(shipped: Compatibility) -> None:
    """A misspelt release."""
    with pytest.raises(ConfigurationError, match=r"unknown release `26\.7`") as caught:
        resolve_target(shipped, release="26.7")
    assert caught.value.remedy.startswith("did you mean `26.07`? engine.target.release is one of")


def test_unknown_gpu_names_the_nearest(shipped: Compatibility) -> None:
    """A GPU that the table lacks can still be given by its compute capability."""
    with pytest.raises(ConfigurationError, match="unknown GPU `H101`") as caught:
        resolve_target(shipped, gpu="H101")
    assert caught.value.remedy.startswith("did you mean `H100`?")
    assert "engine.target.compute_capability" in caught.value.remedy


def test_unknown_compute_capability(shipped: Compatibility) -> None:
    """`90` is a common way to write 9.0; here it is refused with the list."""
    with pytest.raises(ConfigurationError, match="unknown compute capability `90`") as caught:
        resolve_target(shipped, compute_capability="90")
    assert "8.9, 9.0, 10.0" in caught.value.remedy


@pytest.mark.parametrize(("field", "value"), [("precision", "int8sq"), ("kv_cache_dtype", "fp16")])
def test_unknown_format_lists_the_known(shipped: Compatibility, field: str, value: str) -> None:
    """Precision and KV cache type."""
    precision, cache = ("fp8", value) if field == "kv_cache_dtype" else (value, None)
    with pytest.raises(ConfigurationError, match=f"unknown {field} `{value}`") as caught:
        check_formats(target_of(shipped, "H100"), precision, shipped, kv_cache_dtype=cache)
    assert f"engine.{field} is one of" in caught.value.remedy


@pytest.mark.parametrize("release", ["26.08", "26.09", "26.10"])
def test_refuse_release_without_tensorrt_llm(shipped: Compatibility, release: str) -> None:
    """From 26.08 on there is no image; the last that there is, is named."""
    with pytest.raises(
        ConfigurationError, match=f"release {release} has no TensorRT-LLM image"
    ) as e:
        resolve_target(shipped, release=release)
    assert e.value.remedy == "set engine.target.release to 26.07 (TensorRT-LLM 1.2.1)"
    assert e.value.exit_code == 3


def test_refuse_world_of_release(shipped: Compatibility) -> None:
    """Nothing compiles engines from 1.3.0rc21 on; PyTorch begins with 1.0."""
    with pytest.raises(
        ConfigurationError, match=r"1\.3\.0rc22 .* does not compile engines"
    ) as caught:
        resolve_target(shipped, release="1.3.0rc22", world="engine")
    assert caught.value.remedy.startswith("set engine.target.release to 26.07")
    assert caught.value.remedy.endswith("engine.target.world to pytorch")
    with pytest.raises(
        ConfigurationError, match=r"0\.21\.0 .* does not load quantised checkpoints"
    ):
        resolve_target(shipped, release="25.08", world="pytorch")


def test_refuse_contradicting_compute_capability(shipped: Compatibility) -> None:
    """A GPU has one."""
    with pytest.raises(ConfigurationError, match=r"L4 has 8\.9"):
        resolve_target(shipped, gpu="L4", compute_capability="9.0")
    assert resolve_target(shipped, gpu="L4", compute_capability="8.9").gpu == "L4"


@pytest.mark.parametrize("gpu", ["V100-16", "T4"])
def test_refuse_gpu_before_ampere(shipped: Compatibility, gpu: str) -> None:
    """Triton runs on Turing, TensorRT-LLM does not."""
    with pytest.raises(ConfigurationError, match=f"does not support {gpu}") as caught:
        resolve_target(shipped, gpu=gpu)
    assert "8.0 (Ampere) or later" in caught.value.remedy


@pytest.mark.parametrize(
    ("gpu", "release", "near"), [("B200", "24.12", "25.01"), ("B300", "25.05", "25.06")]
)
def test_refuse_gpu_newer_than_the_release(
    shipped: Compatibility, gpu: str, release: str, near: str
) -> None:
    """CUDA of that release cannot compile for that GPU."""
    with pytest.raises(ConfigurationError, match="cannot compile for") as caught:
        resolve_target(shipped, gpu=gpu, release=release)
    assert caught.value.remedy == f"set engine.target.release to {near} or later"
    assert resolve_target(shipped, gpu=gpu, release=near).release == near


REFUSED_ON_GPU: list[Refused] = [
    # precision, GPU, compute capability in the problem, world, remedy begins with
    ("fp8", "A100-80", "8.0", "engine", "set engine.precision to int8_sq"),
    ("fp8", "A100-80", "8.0", "pytorch", "set engine.precision to int8_wo"),
    ("fp8", "A10", "8.6", "engine", "set engine.precision to int8_sq"),
    ("fp8_pc_pt", "L4", "8.9", "engine", "set engine.precision to fp8"),
    ("fp8_pc_pt", "B200", "10.0", "engine", "set engine.precision to fp8"),
    ("w4a8_awq", "A30", "8.0", "engine", "set engine.precision to int4_awq"),
    ("w4a8_awq", "B200", "10.0", "engine", "set engine.precision to nvfp4"),
    ("nvfp4", "H100", "9.0", "engine", "set engine.precision to w4a8_awq"),
    ("nvfp4", "A100-40", "8.0", "pytorch", "set engine.precision to int4_awq"),
    ("int8_sq", "B200", "10.0", "engine", "set engine.precision to fp8"),
    ("int8_wo", "B200", "10.0", "engine", "set engine.precision to fp8"),
    ("int4_wo", "B300", "10.3", "engine", "set engine.precision to nvfp4"),
    ("int4_awq", "B200", "10.0", "engine", "set engine.precision to nvfp4"),
]


@pytest.mark.parametrize(("precision", "gpu", "capability", "world", "remedy"), REFUSED_ON_GPU)
def test_refuse_format_on_gpu(
    shipped: Compatibility, precision: str, gpu: str, capability: str, world: World, remedy: str
) -> None:
    """The GPU lacks the arithmetic: another precision or other GPUs are named."""
    target = target_of(shipped, gpu, world)
    with pytest.raises(ConfigurationError) as caught:
        check_formats(target, precision, shipped)
    assert caught.value.problem.startswith(
        f"engine.precision {precision} cannot run on {gpu} (compute capability {capability}): "
    )
    assert caught.value.remedy.startswith(f"{remedy}, or engine.target.gpu to one that can: ")
    named = caught.value.remedy.split("to ")[1].split(",")[0].strip()
    assert check_formats(target, named, shipped) == []


def test_refuse_kv_cache_dtype_on_gpu(shipped: Compatibility) -> None:
    """INT8 caches end with Hopper; FP8 caches run from Ampere on."""
    with pytest.raises(ConfigurationError, match="kv_cache_dtype int8 cannot run on B200"):
        check_formats(target_of(shipped, "B200"), "fp8", shipped, kv_cache_dtype="int8")
    assert check_formats(target_of(shipped, "A10"), "int8_sq", shipped, kv_cache_dtype="fp8") == []


@pytest.mark.parametrize(
    ("precision", "cache", "world", "problem", "remedy"),
    [
        ("int8_sq", None, "pytorch", "executes SmoothQuant", "set engine.precision to fp8"),
        ("int4_wo", None, "pytorch", "scale per row", "set engine.precision to int4_awq"),
        ("fp8", "int8", "pytorch", "FP8 and NVFP4 caches", "set engine.kv_cache_dtype to fp8"),
        ("fp8", "nvfp4", "engine", "FP8 and INT8 caches", "set engine.kv_cache_dtype to fp8"),
    ],
)
def test_refuse_format_in_world(
    shipped: Compatibility,
    precision: str,
    cache: str | None,
    world: World,
    problem: str,
    remedy: str,
) -> None:
    """SmoothQuant and INT8 caches are for engines, NVFP4 caches for PyTorch."""
    with pytest.raises(ConfigurationError, match=problem) as caught:
        check_formats(target_of(shipped, "H100", world), precision, shipped, kv_cache_dtype=cache)
    assert caught.value.remedy.startswith(remedy)
    assert "engine.target.release to 26.07 with world" in caught.value.remedy


def test_refuse_format_with_cuda(shipped: Compatibility) -> None:
    """FP4 kernels for 10.3 come with CUDA 13."""
    target = resolve_target(shipped, gpu="B300", release="25.10")
    with pytest.raises(ConfigurationError, match=r"needs CUDA 13\.0") as caught:
        check_formats(target, "nvfp4", shipped)
    assert caught.value.remedy == "set engine.target.release to 25.11 or later"
    assert check_formats(resolve_target(shipped, gpu="B300"), "nvfp4", shipped) == []


def test_undocumented_pairs_are_warned_about(shipped: Compatibility) -> None:
    """Neither listed nor refused by TensorRT-LLM: the user's risk."""
    (warning,) = check_formats(target_of(shipped, "RTX 5090"), "int4_awq", shipped)
    assert "engine.precision int4_awq on compute capability 12.0" in warning
    (warning,) = check_formats(target_of(shipped, "B200", "pytorch"), "int4_awq", shipped)
    assert "does not document this pair" in warning


def test_without_a_gpu_only_worlds_are_checked(shipped: Compatibility) -> None:
    """A target may leave the GPU open."""
    target = resolve_target(shipped)
    assert all(check_formats(target, precision, shipped) == [] for precision in shipped.precisions)


def test_refuse_driver(shipped: Compatibility) -> None:
    """Too old for the release's CUDA: the newest release that it can run is named."""
    release = release_named("26.07", shipped)
    assert refuse_driver(release, "590.44.01", shipped, data_center=False) is None
    assert refuse_driver(release, "610.10", shipped, data_center=False) is None
    with pytest.raises(ConfigurationError, match=r"driver 575\.57\.08 is older") as caught:
        refuse_driver(release, "575.57.08", shipped, data_center=False)
    assert caught.value.remedy == (
        "update the driver to 590.44.01 or later, or engine.target.release to 25.10"
    )
    warning = refuse_driver(release, "535.86.10", shipped, data_center=True)
    assert warning is not None
    assert "CUDA compatibility package" in warning


def test_fields_unknown_to_a_server(shipped: Compatibility) -> None:
    """The embedded 2.51 knows none of the newer fields, 2.63 all of them."""
    assert set(fields_unknown_to("2.51.0", shipped)) == set(shipped.config_fields)
    assert set(fields_unknown_to("2.52.0", shipped)) == {
        "ensemble_scheduling.max_inflight_requests"
    }
    assert fields_unknown_to("2.63.0", shipped) == {}


def test_config_fields_exist_in_triton_s_schema(shipped: Compatibility) -> None:
    """A misspelt field in the table would never match one of a config.pbtxt."""
    for path in shipped.config_fields:
        message = model_config.ModelConfig.DESCRIPTOR
        for name in path.split("."):
            assert name in message.fields_by_name, path
            message = message.fields_by_name[name].message_type


def test_architecture_of_a_gpu(shipped: Compatibility) -> None:
    """Generations have names."""
    assert architecture_of("8.9", shipped).name == "Ada"


def test_a_project_s_own_table_wins(tmp_path: Path) -> None:
    """A new release can be used before tritonctl knows it."""
    own = tmp_path / "builders" / "compatibility.toml"
    own.parent.mkdir()
    shutil.copy(bundled.find("builders/compatibility.toml"), own)
    text = own.read_text(encoding="utf-8")
    own.write_text(text.replace('default_release = "26.07"', 'default_release = "26.06"'), "utf-8")
    assert resolve_target(table(tmp_path)).release == "26.06"


def test_malformed_table(tmp_path: Path) -> None:
    """The file is named."""
    own = tmp_path / "builders" / "compatibility.toml"
    own.parent.mkdir()
    own.write_text('schema = "tritonctl.compatibility/2"\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"compatibility\.toml is malformed"):
        table(tmp_path)
