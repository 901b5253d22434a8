# SPDX-License-Identifier: Apache-2.0
"""`options.pooling` of the task tensors, against the modules.json beside the encoder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders.conftest import BUILDERS, ENCODER_CONFIG, safetensors, write_json

DENSE = {"in_features": 8, "out_features": 4, "activation_function": "torch.nn.Identity"}
CLS, MEAN = {"pooling_mode": "cls"}, {"pooling_mode_mean_tokens": True}


def save(folder: Path, *modules: tuple[str, dict[str, Any]]) -> None:
    """Write modules.json and the folders of the modules behind the encoder."""
    entries = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}]
    for index, (kind, config) in enumerate(modules, start=1):
        place = folder / f"{index}_{kind}"
        place.mkdir()
        write_json(place / "config.json", config)
        safetensors(place / "model.safetensors")
        name = f"sentence_transformers.models.{kind}"
        entries.append({"idx": index, "path": place.name, "type": name})
    write_json(folder / "modules.json", entries)


def refused(folder: Path, **changes: Any) -> str:
    """What the builder says to a request before it builds: the program that `plan` asks."""
    file = folder.parent / "R.json"
    asked = {
        "schema": "tritonctl.build/1",
        "model": "m",
        "checkpoint": str(folder),
        "precision": "fp32",
        "limits": {"max_batch_size": 8},
        **changes,
    }
    file.write_text(json.dumps(asked), encoding="utf-8")
    program = BUILDERS / "onnxruntime" / "build.py"
    done = subprocess.run(
        [sys.executable, program, "--request", file, "--check"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode == 0) == (done.stderr == ""), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("pooling", "modules", "problem", "remedy"),
    [
        ("mean", [("Pooling", CLS)], "modules.json pools by cls", "pooling to cls, or set "),
        ("cls", [("Pooling", MEAN)], "modules.json pools by mean", "pooling to mean, or set "),
        (
            "mean",
            [("Pooling", {"pooling_mode": ["mean", "max"]})],
            "modules.json pools by mean, max",
            "\nSet `task: embedding`",
        ),
        (
            "mean",
            [("Pooling", MEAN), ("Dense", DENSE)],
            "modules.json has a Dense behind its pooling",
            "\nSet `task: embedding`",
        ),
        ("mean", [("Pooling", MEAN), ("LSTM", {})], "models.LSTM is not known", "Or remove pool"),
    ],
)
def test_vectors_of_another_pooling(
    encoder: Path, pooling: str, modules: list[tuple[str, Any]], problem: str, remedy: str
) -> None:
    """Right in shape and length, of no use in a search: refused, with what to write instead."""
    save(encoder, *modules)
    said = refused(encoder, options={"pooling": pooling})
    assert problem in said
    assert remedy in said


@pytest.mark.parametrize(
    ("options", "modules"),
    [
        ({"pooling": "mean"}, []),
        ({"pooling": "mean"}, [("Pooling", MEAN)]),
        ({"pooling": "cls", "normalize": True}, [("Pooling", CLS)]),
        ({"pooling": "cls"}, [("Pooling", CLS), ("Normalize", {})]),
        ({}, [("Pooling", CLS), ("LSTM", {})]),
    ],
)
def test_vectors_of_the_checkpoint_s_direction(
    encoder: Path, options: dict[str, Any], modules: list[tuple[str, Any]]
) -> None:
    """Their length is the project's choice; without pooling there is no vector to get wrong."""
    if modules:
        save(encoder, *modules)
    assert refused(encoder, options=options) == ""


def test_a_classifier_has_no_vectors(encoder: Path) -> None:
    """Its modules.json names an encoder alone; the build says that it does not pool."""
    write_json(
        encoder / "config.json",
        ENCODER_CONFIG | {"architectures": ["BertForSequenceClassification"]},
    )
    save(encoder)
    assert refused(encoder, options={"pooling": "mean"}) == ""
