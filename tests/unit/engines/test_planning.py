# SPDX-License-Identifier: Apache-2.0
"""`tritonctl plan`: projects of large models, on devices, with and without earlier builds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import headers
from tests.json_page import as_documented
from tritonctl.engines.artefacts.store import stored_artefacts
from tritonctl.engines.builds.engine import build_engine
from tritonctl.engines.planning.plans import build_seconds, plan_model
from tritonctl.engines.planning.records import ModelPlan
from tritonctl.errors import ConfigurationError
from tritonctl.host.progress import Silent

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

GIB = 1 << 30


@pytest.fixture
def large(sandbox: Sandbox) -> Sandbox:
    """A project that serves Llama 3 70B in FP8 with TensorRT-LLM."""
    headers.write_checkpoint(sandbox.root / "70b", headers.LLAMA_3_70B, shards=4)
    sandbox.data["models"]["speller"]["checkpoint"] = "70b"
    sandbox.engine.update(
        builder="tensorrt_llm",
        precision="fp8",
        max_batch_size=16,
        max_seq_len=4096,
        max_num_tokens=8192,
        options={},
    )
    return sandbox


def _plan(sandbox: Sandbox, *gpus: str, memory: int | None = None) -> ModelPlan:
    return plan_model(sandbox.load(), "speller", gpus, memory)


def test_a_70b_model_in_fp8(large: Sandbox) -> None:
    """Weights fill an H100; two of them, or one H200, hold a batch beside them."""
    plan = _plan(large, "H100", "H200")
    assert plan.parameters == 70_553_706_496
    # Linear layers one byte, embedding and head two, 560 pairs of FP32 scales.
    assert plan.weights == pytest.approx(68.452e9 + 2 * 2.1013e9, rel=1e-3)
    assert plan.kv_bytes_per_token == 327_680
    small, big = plan.fits
    assert (small.device.name, small.fits) == ("H100", False)
    assert 0 < small.largest_batch < 16
    assert (big.device.name, big.fits) == ("H200", True)
    assert big.largest_batch > 16
    assert big.longest is not None
    assert big.longest >= 4096
    large.engine["tp_size"] = 2
    (pair,) = _plan(large, "h100").fits
    assert (pair.count, pair.fits) == (2, True)
    assert pair.needed < 0.6 * small.needed


def test_what_is_needed_is_the_sum(large: Sandbox) -> None:
    """Weights, activations, logits and a KV pool of whole blocks; twice that for two instances."""
    large.engine["max_seq_len"] = 4097
    plan = _plan(large, memory=80 * GIB)
    kv = 16 * (4096 + 32) * plan.kv_bytes_per_token
    logits = 16 * 128256 * 4
    needed = plan.weights + plan.activations + logits + kv
    assert plan.fits[0].needed == pytest.approx(needed, abs=1)
    large.serving["instance_group"] = [{"kind": "KIND_GPU", "count": 2}]
    assert _plan(large, memory=80 * GIB).fits[0].needed == pytest.approx(2 * needed, abs=2)
    halves = _plan(large, memory=800 * GIB).fits[0]
    del large.serving["instance_group"]
    assert halves.largest_batch == _plan(large, memory=400 * GIB).fits[0].largest_batch
    large.serving["kv_cache_tokens"] = 4097
    smaller = needed - kv + 4097 * plan.kv_bytes_per_token
    assert _plan(large, memory=80 * GIB).fits[0].needed == pytest.approx(smaller, abs=1)


def test_kv_cache_dtype(large: Sandbox) -> None:
    """FP8 halves the cache, whatever the weights are in."""
    whole = _plan(large, "H200")
    large.engine["kv_cache_dtype"] = "fp8"
    half = _plan(large, "H200")
    assert half.kv_bytes_per_token == whole.kv_bytes_per_token / 2
    assert half.weights == whole.weights
    assert half.fits[0].largest_batch >= 2 * whole.fits[0].largest_batch


def test_beams(large: Sandbox) -> None:
    """Two hypotheses a sequence: twice the cache, twice the logits, once the weights."""
    one = _plan(large, "H200")
    large.engine["max_beam_width"] = 2
    two = _plan(large, "H200")
    assert two.kv_bytes_per_token == 2 * one.kv_bytes_per_token
    rest = one.weights + one.activations
    assert two.fits[0].needed - rest == pytest.approx(2 * (one.fits[0].needed - rest), abs=2)


def test_lengths_end_where_the_model_does(large: Sandbox) -> None:
    """A device with room to spare makes no position embeddings; without max_seq_len they count."""
    large.engine["max_seq_len"] = None
    (fit,) = _plan(large, memory=10_000 * GIB).fits
    assert (fit.length, fit.longest) == (8192, 8192)


def test_cpu_engines_take_host_memory(large: Sandbox) -> None:
    """This host's, unless another is named; GPUs do not come into it."""
    large.engine.update(builder="openvino", precision="int8", max_num_tokens=None)
    plan = _plan(large, "H100")
    (fit,) = plan.fits
    assert fit.device.name == "host"
    assert 0 < fit.device.memory < 10**15
    (fit,) = _plan(large, memory=400 * GIB).fits
    assert fit.usable == 400 * GIB
    assert fit.needed > 2 * plan.weights  # the mapped file and the packed copy
    assert plan.build_memory is not None
    assert plan.disk > 4 * 70_553_706_496


def test_int4_options(large: Sandbox) -> None:
    """Group size and ratio are NNCF's: smaller groups and fewer layers in INT4 take more."""
    large.engine.update(builder="openvino", precision="int4")

    def size(**options: object) -> int:
        large.engine["options"] = options
        return _plan(large).weights

    assert size(group_size=-1) < size(group_size=128) < size() < size(group_size=32)
    assert size(ratio=1.0) == size() < size(ratio=0.5)
    large.engine["precision"] = "int8"
    assert size(ratio=0.5) == size()  # of INT8 there is no ratio


REFUSALS: list[tuple[Callable[[Sandbox], None], str, str]] = [
    (lambda s: s.engine.update(builder="scripted"), "no figures for builder scripted", "openvino"),
    (lambda s: s.engine.update(precision="fp5"), "no figures for tensorrt_llm fp5", "int8_sq"),
    (lambda s: s.engine.update(kv_cache_dtype="fp3"), "a KV cache of type `fp3`", "nvfp4"),
    (lambda s: (s.root / "70b" / "config.json").unlink(), "config.json cannot be read", "again"),
    (lambda s: shutil.rmtree(s.root / "70b"), "70b is not a folder", "`tritonctl fetch`"),
]


@pytest.mark.parametrize(("change", "problem", "remedy"), REFUSALS)
def test_refusals(
    large: Sandbox, change: Callable[[Sandbox], None], problem: str, remedy: str
) -> None:
    """Named with what there is instead."""
    change(large)
    with pytest.raises(ConfigurationError) as caught:
        _plan(large)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


def test_no_length(large: Sandbox) -> None:
    """Neither the project nor the model says how long a sequence may be."""
    config = {k: v for k, v in headers.LLAMA_3_70B.items() if k != "max_position_embeddings"}
    (large.root / "70b" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    large.engine["max_seq_len"] = None
    with pytest.raises(ConfigurationError, match="gives the length of a sequence"):
        _plan(large)


def test_which_gpus(large: Sandbox) -> None:
    """Those asked for, else the target's, else every one of the table."""
    assert len(_plan(large).fits) > 20
    large.engine["target"] = {"gpu": "H200"}
    assert [fit.device.name for fit in _plan(large).fits] == ["H200"]
    assert [fit.device.memory for fit in _plan(large, "h100").fits] == [80 * GIB]
    with pytest.raises(ConfigurationError, match="unknown GPU `H1000`"):
        _plan(large, "H1000")


def test_gpus_that_cannot_run_it(large: Sandbox) -> None:
    """However much memory they have; of a GPU that nobody knows only the memory counts."""
    fits = {fit.device.name: fit for fit in _plan(large).fits}
    assert "FP8 arithmetic came with Ada" in str(fits["A100-80"].refused)
    assert "does not support" in str(fits["V100-32"].refused)
    assert fits["H200"].refused is None
    large.engine["tp_size"] = 8
    (a100, other) = _plan(large, "A100-80").fits + _plan(large, "X1", memory=80 * GIB).fits
    assert (a100.fits, other.fits) == (False, True)
    assert a100.needed == other.needed


def _artefact(sandbox: Sandbox, name: str, size: int, seconds: float, **more: Any) -> Path:
    """Copy the built engine's manifest as one of another size and time."""
    store = sandbox.root / ".tritonctl" / "engines" / "speller"
    first = next(folder for folder in store.iterdir() if len(folder.name) == 16)
    record = json.loads((first / "manifest.json").read_bytes())
    record["fingerprint"] = name
    record["request"] |= {"precision": more.pop("precision", "int8")}
    record["result"]["files"] = record["result"]["files"][:1]
    record["result"]["files"][0]["size"] = size
    record["result"]["durations_seconds"] = {"load": seconds / 2, "convert": seconds / 2}
    folder = store / name
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(record | more), encoding="utf-8")
    return folder


def test_build_times_of_earlier_builds(built: Sandbox) -> None:
    """The nearest in size, of the same precision first, scaled up by bytes and never down."""
    engine = built.load().models["speller"].engine
    sizes = {"int8": 1000, "fp32": 4000}

    def guess(**changed: int) -> tuple[float | None, str]:
        return build_seconds(stored_artefacts(built.load()), engine, sizes | changed)

    _artefact(built, "a" * 16, 500, 10.0)
    _artefact(built, "b" * 16, 4000, 7.0, precision="fp32")
    assert guess() == (20.0, "speller/" + "a" * 16)
    assert guess(int8=501)[0] == pytest.approx(10.0 * 501 / 500)
    assert guess(int8=400)[0] == 10.0
    assert guess(int8=10**6) == (7.0, "speller/" + "b" * 16)
    assert guess(int8=10**6, fp32=10**6)[0] is None


def test_stages_add_up(built: Sandbox) -> None:
    """A build in stages took as long as all of them."""
    engine = built.load().models["speller"].engine
    _artefact(built, "a" * 16, 10**6, 10.0)
    _artefact(built, "b" * 16, 2 * 10**6, 7.0, source="a" * 16)
    artefacts = stored_artefacts(built.load())
    assert build_seconds(artefacts, engine, {"int8": 2 * 10**6})[0] == 17.0


def test_a_built_engine_has_a_size(sandbox: Sandbox) -> None:
    """What is there need not be estimated."""
    figures = 'schema = "tritonctl.estimates/1"\n[kv_cache_dtypes]\n[builders.scripted]\n'
    figures += (
        'device = "host"\nblock_size = 32\nmax_num_tokens = 256\n[builders.scripted.precisions]\n'
    )
    figures += "int8 = { linear = 8, embedding = 8, head = 8, other = 8, kv = 8, activation = 8 }\n"
    (sandbox.root / "builders" / "estimates.toml").write_text(figures, encoding="utf-8")
    headers.write_checkpoint(sandbox.root / "small", headers.QWEN2_5_HALF_B)
    sandbox.data["models"]["speller"]["checkpoint"] = "small"
    assert _plan(sandbox).built is None
    artefact = build_engine(sandbox.load(), "speller", Silent())
    plan = _plan(sandbox)
    assert plan.built == sum(file.size for file in artefact.manifest.result.files)


def test_command(cli: Cli, large: Sandbox) -> None:
    """Figures and devices for people, one object for scripts; nothing is started or written.

    The weights are still on their way: what the builder would say of that comes behind the figures.
    """
    large.write()
    done = cli("plan", "--gpus", "H200")
    assert done.returncode == 5
    assert "speller: " in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "speller: tensorrt_llm fp8"
    assert lines[1].split() == ["parameters", "70,553,706,496"]
    assert ["KV/token", "320.0", "KiB"] in [line.split() for line in lines]
    assert lines[-1].split()[0] == "H200"
    printed = cli("plan", "speller", "--device-memory", "80GiB", "--json").stdout
    record = as_documented("plan", printed)
    (plan,) = record["models"]
    assert (plan["fits"][0]["device"], plan["fits"][0]["device_memory_bytes"]) == ("GPU", 80 * GIB)
    assert plan["fits"][0]["fits"] is False
    assert not (large.root / ".tritonctl").exists()


def test_models_of_other_builders(cli: Cli, large: Sandbox) -> None:
    """They can be built; that they have no figures is said."""
    large.data["models"]["other"] = large.model()
    large.write()
    done = cli("plan", "--gpus", "H200", "--json")
    record = json.loads(done.stdout)
    assert ([m["model"] for m in record["models"]], record["without_figures"]) == (
        ["speller"],
        ["other"],
    )
    assert "no figures for other" in done.stderr
    assert cli("plan", "other").returncode == 0


def test_command_refusals(cli: Cli, large: Sandbox) -> None:
    """Usage is 2, the project's faults are 3."""
    large.write()
    assert cli("plan", "--gpus", "H1000").returncode == 2
    assert cli("plan", "--device-memory", "much").returncode == 2
    assert cli("plan", "other").returncode == 2
