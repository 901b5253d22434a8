# SPDX-License-Identifier: Apache-2.0
"""A wrong export fails the build: each damage is done to a real one and must be seen."""

from __future__ import annotations

import json

import pytest

from tests.builders.quantising import EXAMPLE, PROGRAM, environment, ok, run
from tests.builders.warm import run_warm

pytestmark = pytest.mark.engine

# In the stage's environment: one export of each world, then each damage to a copy of it.
DAMAGE = """
import json, shutil, sys, warnings
from pathlib import Path
request, builders, source = map(Path, sys.argv[1:4])
sys.path[:0] = [str(builders / "tensorrt_llm"), str(builders / "shared")]
warnings.simplefilter("ignore")
import torch
from safetensors.torch import load_file, save_file
from buildlib.problems import BuildError
from checks import verify_export
from choices import QuantiseChoices
from recipes import RECIPES

def damaged(folder, damage):
    copy = folder.with_name("damaged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    file = next(iter(sorted(copy.glob("*.safetensors"))))
    tensors = load_file(file)
    config = copy / damage.get("file", "config.json")
    values = json.loads(config.read_text())
    exec(damage["code"], {"tensors": tensors, "values": values, "torch": torch})
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    config.write_text(json.dumps(values))
    return copy

answers = []
for damage in json.loads(request.read_text()):
    choices = QuantiseChoices(RECIPES[damage["precision"]], damage["world"], "float16", None, 1, 1,
                              128, None, None)
    try:
        copy = damaged(Path(damage["folder"]), damage)
        verify_export(copy, source, damage["precision"], choices)
        answers.append("")
    except BuildError as error:
        answers.append(error.problem)
print("answers:" + json.dumps(answers))
"""
_FC = "transformer.layers.1.mlp.fc"
_GATE = "transformer.layers.1.mlp.gate"
_UP = "model.layers.1.mlp.up_proj"
ENGINE = ("fp8", "engine")
UNIFIED = ("int8_wo", "pytorch")
DAMAGES: dict[str, tuple[tuple[str, str], str, str]] = {
    "nothing": (ENGINE, "", ""),
    "nothing unified": (UNIFIED, "", ""),
    "scale lost": (ENGINE, f"del tensors['{_FC}.weights_scaling_factor']", "expected ["),
    "weight lost": (ENGINE, f"del tensors['{_FC}.weight']", f"{_FC} has"),
    "one too many": (
        ENGINE,
        "tensors['transformer.layers.4.x.weight'] = torch.ones(1)",
        "transformer.layers.4.x.weight is an unexpected tensor",
    ),
    "scale not finite": (
        ENGINE,
        f"tensors['{_FC}.activation_scaling_factor'].fill_(float('nan'))",
        "not finite",
    ),
    "scale negative": (
        ENGINE,
        f"tensors['{_FC}.activation_scaling_factor'].neg_()",
        "not positive",
    ),
    "scale doubled": (
        ENGINE,
        f"tensors['{_FC}.weights_scaling_factor'].mul_(2)",
        f"{_FC} is not the original's weight in fp8",
    ),
    "layers swapped": (
        ENGINE,
        f"a, b = '{_FC}.weight', '{_GATE}.weight'; tensors[a], tensors[b] = tensors[b], tensors[a]",
        "is not the original's weight in fp8",
    ),
    "type wrong": (
        ENGINE,
        f"tensors['{_FC}.weight'] = tensors['{_FC}.weight'].half()",
        "is stored as torch.float16, expected torch.float8_e4m3fn",
    ),
    "shape wrong": (
        ENGINE,
        f"tensors['{_FC}.weight'] = tensors['{_FC}.weight'].T",
        "has the shape (128, 512), expected (512, 128)",
    ),
    "norm lost its numbers": (
        ENGINE,
        "tensors['transformer.ln_f.weight'].zero_()",
        "transformer.ln_f is not the original's weight in plain",
    ),
    "algorithm wrong": (
        ENGINE,
        "values['quantization']['quant_algo'] = 'INT8'",
        "has quant_algo 'INT8', expected 'FP8'",
    ),
    "KV cache unasked": (
        ENGINE,
        "values['quantization']['kv_cache_quant_algo'] = 'FP8'",
        "has kv_cache_quant_algo 'FP8', expected None",
    ),
    "mapping wrong": (ENGINE, "values['mapping']['tp_size'] = 2", "has mapping"),
    "unified scale of another row": (
        UNIFIED,
        f"tensors['{_UP}.weight_scale'] = tensors['{_UP}.weight_scale'].flip(0)",
        f"{_UP} is not the original's weight in int8",
    ),
    "unified norm in fp32": (
        UNIFIED,
        "tensors['model.norm.weight'] = tensors['model.norm.weight'].float()",
        "is stored as torch.float32, expected torch.float16",
    ),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the checks say of each damage; "" where they say nothing."""
    folder = tmp_path_factory.mktemp("checks")
    python = environment()
    exports = {}
    for precision, world in (ENGINE, UNIFIED):
        (folder / world).mkdir()
        whole = run(python, folder / world, precision=precision, world=world)
        exports[precision, world] = ok(whole).checkpoint
    asked = [
        {"precision": pair[0], "world": pair[1], "folder": str(exports[pair]), "code": code}
        | ({"file": "hf_quant_config.json"} if pair == UNIFIED else {})
        for pair, code, _ in DAMAGES.values()
    ]
    (folder / "damages.json").write_text(json.dumps(asked), encoding="utf-8")
    arguments = [str(folder / "damages.json"), str(PROGRAM.parents[1]), str(EXAMPLE / "checkpoint")]
    (folder / "damage.py").write_text(DAMAGE, encoding="utf-8")
    done = run_warm(python, [folder / "damage.py", *arguments], folder)
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1].removeprefix("answers:")
    return dict(zip(DAMAGES, json.loads(line), strict=True))


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_seen(answers: dict[str, str], name: str) -> None:
    expected = DAMAGES[name][2]
    assert expected in answers[name]
    assert bool(expected) == bool(answers[name])
