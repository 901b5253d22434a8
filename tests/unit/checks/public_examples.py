# SPDX-License-Identifier: Apache-2.0
"""Public example repositories, made again by hand from what their documentation says of them.

Names, types, sizes and settings are theirs; the code is the least that does what theirs is said to
do; graphs have the inputs and outputs that are told, and no nodes. Texts lie in `public/`, code
as .txt: it is data here.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.unit.checks.repositories import put
from tritonctl.checks.examples.files import Example, ExampleFile
from tritonctl.checks.examples.onnx import FLOAT, INT32, onnx_file

PUBLIC = Path(__file__).parent / "public"
_NVIDIA = "https://github.com/triton-inference-server"
Shapes = Mapping[str, Sequence[int | str]]


@dataclass(frozen=True)
class PublicExample:
    """A repository, and all that is to be found in it: rule, file and underlined text.

    more: what is no text. changed: file, its text, and what stood there once.
    """

    source: str
    folder: str
    more: Example = field(default_factory=dict)
    changed: tuple[str, str, str] | None = None
    found: frozenset[tuple[str, str, str]] = frozenset()

    def put(self, folder: Path) -> Path:
        """Write it into a new folder."""
        shutil.copytree(PUBLIC / self.folder, folder)
        for code in folder.rglob("*.py.txt"):
            code.rename(code.with_suffix(""))
        put(folder, self.more)
        if self.changed:
            name, text, once = self.changed
            whole = (folder / name).read_text(encoding="utf-8")
            assert text in whole
            (folder / name).write_text(whole.replace(text, once), encoding="utf-8")
        return folder


def _onnx(inputs: Shapes, outputs: Shapes, kind: int = FLOAT) -> ExampleFile:
    given = {name: (kind, shape) for name, shape in inputs.items()}
    return ExampleFile(onnx_file(given, {name: (kind, shape) for name, shape in outputs.items()}))


_PIPELINE = {
    "text_detection/1/model.onnx": _onnx(
        {"input_images:0": ("n", "h", "w", 3)},
        {
            "feature_fusion/Conv_7/Sigmoid:0": ("n", "a", "b", 1),
            "feature_fusion/concat_3:0": ("n", "a", "b", 5),
        },
    ),
    "text_recognition/1/model.onnx": _onnx(
        {"input.1": ("batch", 1, 32, 100)}, {"308": ("batch", 26, 37)}
    ),
}
_ENSEMBLES = f"{_NVIDIA}/tutorials/tree/main/Conceptual_Guide/Part_5-Model_Ensembles"

EXAMPLES: dict[str, PublicExample] = {
    "text pipeline": PublicExample(_ENSEMBLES, "text_pipeline", _PIPELINE),
    # As it stood for a while: the ensemble asks for an output by the number of another export.
    "text pipeline, another export": PublicExample(
        _ENSEMBLES,
        "text_pipeline",
        _PIPELINE,
        changed=("ensemble_model/config.pbtxt", 'key: "308"', 'key: "307"'),
        found=frozenset({("TC322", "ensemble_model/config.pbtxt", '"307"')}),
    ),
    "vision transformer": PublicExample(
        f"{_NVIDIA}/tutorials/tree/main/HuggingFace",
        "vision_transformer",
        {
            "vit/1/model.onnx": _onnx(
                {"pixel_values": ("batch", 3, 224, 224)},
                {"last_hidden_state": ("batch", "n", 768)},
            )
        },
    ),
    "densenet": PublicExample(
        f"{_NVIDIA}/server/tree/main/docs/examples/model_repository/densenet_onnx",
        "densenet",
        {
            "densenet_onnx/1/model.onnx": _onnx(
                {"data_0": (1, 3, 224, 224)}, {"fc6_1": (1, 1000, 1, 1)}
            ),
            "densenet_onnx/densenet_labels.txt": "\n".join(f"thing {n}" for n in range(1000)),
        },
    ),
    "resnet, TorchScript": PublicExample(
        f"{_NVIDIA}/tutorials/tree/main/Quick_Deploy/PyTorch",
        "resnet_torchscript",
        {"resnet50/1/model.pt": ExampleFile(b"PK\x03\x04" + bytes(64))},
    ),
    "sequences": PublicExample(
        f"{_NVIDIA}/server/tree/main/docs/examples/model_repository/simple_sequence",
        "simple_sequence",
        {
            "simple_sequence/1/model.onnx": _onnx(
                dict.fromkeys(("INPUT", "START", "READY"), ("batch", 1)),
                {"OUTPUT": ("batch", 1)},
                INT32,
            )
        },
        found=frozenset({("TC522", "simple_sequence/config.pbtxt", "sequence_batching")}),
    ),
    "sequences, oldest first": PublicExample(
        f"{_NVIDIA}/server/tree/main/docs/examples/model_repository/simple_dyna_sequence",
        "simple_dyna_sequence",
    ),
    "decoupled, and called": PublicExample(
        f"{_NVIDIA}/python_backend/tree/main/examples/bls_decoupled",
        "bls_decoupled",
        found=frozenset({("TC417", "square_int32/1/model.py", "sender.send")}),
    ),
    "iterative scheduling": PublicExample(
        f"{_NVIDIA}/tutorials/tree/main/Conceptual_Guide/Part_7-iterative_scheduling",
        "iterative_scheduling",
        found=frozenset({("TC524", "iterative-gpt2/config.pbtxt", "sequence_batching")}),
    ),
    "vLLM in Python": PublicExample(
        f"{_NVIDIA}/tutorials/tree/main/Quick_Deploy/vLLM",
        "vllm_python",
        found=frozenset({("TC417", "vllm/1/model.py", "sender.send")}),
    ),
    "diffusion": PublicExample(
        f"{_NVIDIA}/tutorials/tree/main/Popular_Models_Guide/StableDiffusion",
        "stable_diffusion",
        found=frozenset({("TC501", "stable_diffusion_xl/config.pbtxt", "dynamic_batching")}),
    ),
}
