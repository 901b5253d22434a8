# SPDX-License-Identifier: Apache-2.0
"""The shipped examples: what their cards say of the files beside them is true.

That the checkpoints answer as the cards say is measured where they are built:
tests/builders/test_examples.py.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import CHECKOUT

EXAMPLES = CHECKOUT / "examples"
READER, FINDER = EXAMPLES / "digit-reader", EXAMPLES / "number-finder"
NAMES = sorted(file.parent.name for file in EXAMPLES.glob("*/checkpoint"))
MOST_BYTES = 6_000_000


def card(example: Path) -> str:
    """The model card."""
    return (example / "checkpoint" / "README.md").read_text(encoding="utf-8")


def scores(example: Path) -> dict[str, tuple[int, int]]:
    """The rows `| name | right / asked |` of a card."""
    found = re.findall(r"^\| (.+?) \| (\d+) / (\d+)(?: \||$)", card(example), re.MULTILINE)
    return {name: (int(right), int(asked)) for name, right, asked in found}


def lines(file: Path) -> list[dict[str, Any]]:
    """A file of JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def parameters(example: Path) -> int:
    """Of all weights, from the header of the safetensors file."""
    with (example / "checkpoint" / "model.safetensors").open("rb") as file:
        [size] = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    total = 0
    for name, tensor in header.items():
        count = 1
        for dimension in tensor.get("shape", [0]):
            count *= dimension
        total += 0 if name.startswith(("__", "pooler.")) else count
    return total


def test_there_are_some() -> None:
    """Else the tests here test nothing."""
    assert NAMES == ["digit-reader", "number-finder", "number-speller"]


@pytest.mark.parametrize("name", NAMES)
def test_card(name: str) -> None:
    """Its parameters are those of the file; it has a licence, scores, and how it was trained."""
    text = card(EXAMPLES / name)
    assert f"{parameters(EXAMPLES / name):,} parameters" in text
    assert text.startswith("---\nlicense: apache-2.0\n")
    assert "`python train.py --seed 1 " in text
    assert scores(EXAMPLES / name)


@pytest.mark.parametrize("name", NAMES)
def test_size(name: str) -> None:
    """Small enough for a repository and a wheel."""
    files = [file for file in (EXAMPLES / name).rglob("*") if ".ruff_cache" not in file.parts]
    assert sum(file.stat().st_size for file in files if file.is_file()) <= MOST_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_project(name: str) -> None:
    """Its evaluation asks for less than the card has, on a file that is there."""
    project = yaml.safe_load((EXAMPLES / name / "tritonctl.yaml").read_text(encoding="utf-8"))
    [model] = project["models"].values()
    asked = model["evaluation"]
    assert (EXAMPLES / name / asked["prompts"]).is_file()
    least = asked.get("min_score", asked.get("min_exact_match"))
    found = scores(EXAMPLES / name)
    right, count = found["All"]
    assert 0.9 <= least <= right / count


def test_held_out_images() -> None:
    """As many of each label as the card was scored on; each line's file is one, and the reverse."""
    listed = lines(READER / "held-out.jsonl")
    asked = {name: count for name, (_, count) in scores(READER).items()}
    assert Counter(line["label"] for line in listed) == {
        name: count for name, count in asked.items() if not name.startswith("All")
    }
    files = {file.relative_to(READER).as_posix() for file in (READER / "held-out").iterdir()}
    assert {line["image"] for line in listed} == files
    for line in listed:
        head = (READER / line["image"]).read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", head[16:]) == (8, 8)
        assert line["image"].endswith(f"-{line['label']}.png")


def test_labels() -> None:
    """Those of the file are the model's."""
    config = json.loads((READER / "checkpoint" / "config.json").read_text(encoding="utf-8"))
    labels = list(config["id2label"].values())
    assert {line["label"] for line in lines(READER / "held-out.jsonl")} == set(labels)
    assert {label: int(index) for index, label in config["id2label"].items()} == config["label2id"]


def finders(code: str) -> str:
    """What a piece of code prints beside number-finder's scripts, of the standard library alone."""
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-B",
            "-c",
            f"import sys; sys.path.insert(0, {str(FINDER)!r})\n{code}",
        ],
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    return done.stdout


def test_held_out_pairs(tmp_path: Path) -> None:
    """The files are what the scripts make: 1,000 numbers, in two writings each."""
    finders(
        "from pathlib import Path; from dataset import write_pairs, write_texts\n"
        f"write_pairs(Path({str(tmp_path)!r}, 'pairs.jsonl'))\n"
        f"write_texts(Path({str(tmp_path)!r}, 'texts.txt'))"
    )
    for name in ("pairs.jsonl", "texts.txt"):
        assert (tmp_path / name).read_bytes() == (FINDER / name).read_bytes()
    pairs = lines(FINDER / "pairs.jsonl")
    assert len({pair["text"] for pair in pairs}) == scores(FINDER)["All"][1] == len(pairs)
    assert [pair for pair in pairs if pair["query"] == pair["text"]] == []


def test_training_sees_no_held_out_number() -> None:
    """10,000 numbers that it draws, many of them a digit away from one that is held out."""
    drawn = finders(
        "from dataset import Sampler, held_out_numbers; sampler = Sampler(1)\n"
        "drawn = {n for _ in range(100) for n in sampler.draw(100, 3)}\n"
        "seen = drawn & set(held_out_numbers())\n"
        "print(len(drawn), len(seen), min(drawn) >= 0, max(drawn) < 10000)"
    )
    count, seen, *within = drawn.split()
    assert int(count) > 3000
    assert (seen, within) == ("0", ["True", "True"])


def test_modules() -> None:
    """Mean pooling, then length 1: what the card says."""
    folder = FINDER / "checkpoint"
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    assert [one["type"].rpartition(".")[2] for one in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    assert pooling["pooling_mode"] == "mean"
    texts = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    assert texts["prompts"] == {"query": "query: ", "document": "document: "}
