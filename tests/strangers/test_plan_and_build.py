# SPDX-License-Identifier: Apache-2.0
"""`plan` accepts exactly what `build` accepts: the builder's own rules, without its environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import run_here

SPELLER = Path(__file__).parents[2] / "examples" / "number-speller" / "checkpoint"
Change = Callable[["Newcomer"], object]


class Newcomer:
    """A project with one text model of a stranger; `model` is its section."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = shutil.copytree(SPELLER, folder / "checkpoint")
        self.model: dict[str, Any] = {
            "checkpoint": "checkpoint",
            "engine": {"builder": "openvino", "precision": "int8", "max_batch_size": 4},
        }
        self.models = {"mine": self.model}

    def edit(self, name: str, **values: Any) -> None:
        """Change a JSON file of the checkpoint."""
        file = self.checkpoint / name
        file.write_text(json.dumps(json.loads(file.read_text()) | values), encoding="utf-8")

    def pickled(self) -> None:
        """Save the weights as PyTorch did before safetensors."""
        (self.checkpoint / "model.safetensors").unlink()
        write_pickle(self.checkpoint / "pytorch_model.bin", {"lm_head.weight": (64, 8)})

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command line, in the project's folder."""
        content = {"schema": "tritonctl/v1", "models": self.models}
        (self.folder / "tritonctl.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        return run_here(*words, cwd=self.folder)


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    """With the shipped checkpoint as theirs."""
    return Newcomer(tmp_path)


def write_pickle(file: Path, shapes: dict[str, tuple[int, ...]], storage: str = "") -> None:
    """What torch.save() writes of FP32 tensors, opcode by opcode; `storage`: another class."""

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little")

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    def called(name: str) -> bytes:
        return f"c{name}\n".encode()

    pickled = b"\x80\x02}"
    for name, shape in shapes.items():
        kind = called(storage or "torch\nFloatStorage")
        persistent = b"(" + text("storage") + kind + text("0") + text("cpu") + number(1) + b"tQ"
        sizes = b"(" + b"".join(map(number, shape)) + b"t"
        hooks = called("collections\nOrderedDict") + b")R"
        arguments = b"(" + persistent + number(0) + sizes + sizes + b"\x89" + hooks + b"t"
        pickled += text(name) + called("torch._utils\n_rebuild_tensor_v2") + arguments + b"Rs"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickled + b".")


REFUSED: dict[str, tuple[Change, str]] = {
    "decoder": (
        lambda new: new.edit("tokenizer.json", decoder={"type": "ByteFalback"}),
        "its decoder 'ByteFalback' cannot be streamed (did you mean ByteFallback?)",
    ),
    "decoder in a Sequence": (
        lambda new: new.edit(
            "tokenizer.json",
            decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Later"}]},
        ),
        "its decoder 'Later' cannot be streamed",
    ),
    "no fast tokenizer": (
        lambda new: (new.checkpoint / "tokenizer.json").unlink(),
        "has no tokenizer.json",
    ),
    "architecture": (
        lambda new: new.edit("config.json", architectures=["MptForCausalLM"]),
        "does not support MptForCausalLM",
    ),
    "pickles": (Newcomer.pickled, "pickle"),
    "length": (
        lambda new: new.model["engine"].update(max_seq_len=10**6),
        "max_seq_len",
    ),
    "option": (
        lambda new: new.model["engine"].update(options={"group": 3}),
        "engine.options",
    ),
    "builder": (
        lambda new: new.model["engine"].update(builder="openvno"),
        "unknown builder `openvno`",
    ),
    "precision": (
        lambda new: new.model["engine"].update(precision="fp8"),
        "builder openvino has no precision `fp8`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_both_refuse(newcomer: Newcomer, case: str) -> None:
    """In the same words and with the same exit code, before anything is installed."""
    change, problem = REFUSED[case]
    change(newcomer)
    planned, built = newcomer.run("plan"), newcomer.run("build")
    assert problem in planned.stderr
    assert planned.returncode == built.returncode in (3, 5)
    assert planned.stderr.split("error: ")[1] == built.stderr.split("error: ")[1]
    assert not (newcomer.folder / ".tritonctl" / "failed-builds").exists()


def test_pickles_that_are_allowed_have_figures(newcomer: Newcomer) -> None:
    """Shapes are read without running what a pickle names."""
    newcomer.pickled()
    newcomer.model["engine"]["allow_pickle"] = True
    planned = newcomer.run("plan", "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["models"][0]["parameters"] == 64 * 8
    write_pickle(newcomer.checkpoint / "pytorch_model.bin", {"a": (1,)}, storage="os\nsystem")
    planned = newcomer.run("plan")
    assert planned.returncode == 0  # `build` takes it, and warns of it
    assert "it refers to os.system" in planned.stderr


def test_one_bad_model_leaves_the_other_rows(newcomer: Newcomer) -> None:
    """Reasons come behind the tables; what has figures keeps its row."""
    newcomer.models |= {
        "bad": newcomer.model | {"checkpoint": "nowhere"},
        "worse": newcomer.model | {"task": "embed"},
    }
    planned = newcomer.run("plan")
    rows = [line.partition(":")[0] for line in planned.stdout.splitlines() if line[:1].strip()]
    assert rows == ["mine", "worse"]
    assert "2 models cannot be built: bad, worse" in planned.stderr
    assert "checkpoint" in planned.stderr
    assert "has no task `embed`" in planned.stderr
    record = json.loads(newcomer.run("plan", "--json").stdout)
    assert ([m["model"] for m in record["models"]], list(record["refused"])) == (
        ["mine", "worse"],
        ["bad", "worse"],
    )
    assert record["exit_code"] == planned.returncode == 3


def test_an_unknown_gpu_is_an_error(newcomer: Newcomer) -> None:
    """Also where the model runs on the host."""
    planned = newcomer.run("plan", "--gpus", "H10O")
    assert planned.returncode == 2
    assert "unknown GPU `H10O`" in planned.stderr
    assert "H100" in planned.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Gemma2ForCausalLM", "attn_logit_softcapping"),
        ("Gemma3ForConditionalGeneration", "it takes images, too"),
        ("Gemma4ForCausalLM", "does not support Gemma4ForCausalLM\n"),
    ],
)
def test_models_that_resemble_a_supported_one(newcomer: Newcomer, name: str, reason: str) -> None:
    """The reason and the way round; a model of another number or family is no misspelling."""
    newcomer.edit("config.json", architectures=[name])
    planned = newcomer.run("plan")
    assert planned.returncode == 5
    assert reason in planned.stderr
    assert "did you mean" not in planned.stderr
    assert "Gemma3ForCausalLM" in planned.stderr


def test_an_encoder_of_images(newcomer: Newcomer) -> None:
    """Exported by its owner, it is served."""
    newcomer.edit("config.json", architectures=["ViTForImageClassification"])
    newcomer.model |= {"task": "tensors", "engine": {"builder": "onnxruntime", "precision": "fp32"}}
    planned = newcomer.run("plan")
    assert planned.returncode == 5
    assert "does not export ViTForImageClassification: it takes pixels" in planned.stderr
    assert "try: Export it yourself (torch.onnx.export(..., dynamo=True))" in planned.stderr
