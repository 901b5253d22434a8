# SPDX-License-Identifier: Apache-2.0
"""A project whose engine replays given token ids, under the real tokenizer and detokenizer.

    scripts = [{"ids": [5, 6, 7], "sizes": [2]}, ...]
    project = replay_project(folder, {"echo": (tokenizer_json_path, scripts)})
    state, _ = start(project, render(project, Silent()), Silent())

`random_seed` n of a request chooses script n; tests/server/replay_engine/model.py has their format.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.servers import ON_FREE_PORTS
from tritonctl.engines.builds.engine import build_engine
from tritonctl.host import bundled
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project

HERE = Path(__file__).parent
MAX_SEQ_LEN = 65_536
STREAMS = 256
Script = Mapping[str, Any]


@dataclass(frozen=True)
class ReplayModel:
    """What a model says. streams: taken at a time; serving: its section of the project file.

    chat_template: makes prompts of conversations.
    """

    tokenizer_json: Path
    scripts: Sequence[Script]
    streams: int = STREAMS
    serving: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None


def replay_project(
    folder: Path,
    models: Mapping[str, tuple[Path, Sequence[Script]]],
    *,
    streams: int = STREAMS,
    serving: Mapping[str, Any] | None = None,
) -> Project:
    """Write and build a project: model name → (tokenizer.json, scripts). Free ports.

    streams: what the engine takes at a time. serving: the `serving` section of every model.
    """
    alike = {
        name: ReplayModel(*of, streams=streams, serving=serving or {})
        for name, of in models.items()
    }
    return replay_models(folder, alike)


def replay_models(
    folder: Path, models: Mapping[str, ReplayModel], ensembles: Mapping[str, Any] | None = None
) -> Project:
    """The same of models that differ in more than what they say; ensembles: the file's section."""
    _override_contents(folder)
    entries = {}
    for name, model in models.items():
        _write_checkpoint(folder / name, model)
        engine = {
            "builder": "replay",
            "precision": "fp32",
            "max_batch_size": model.streams,
            "max_seq_len": MAX_SEQ_LEN,
        }
        entries[name] = {"checkpoint": name, "engine": engine, "serving": dict(model.serving)}
    file = folder / "tritonctl.yaml"
    data = {"schema": "tritonctl/v1", "models": entries, "server": ON_FREE_PORTS}
    file.write_text(json.dumps(data | {"ensembles": dict(ensembles or {})}))
    project = load_project(file)
    for name in models:
        build_engine(project, name, Silent())
    return project


def _override_contents(folder: Path) -> None:
    shutil.copytree(HERE / "replay_builder", folder / "builders" / "replay")
    backend = folder / "python_backends" / "replay_engine"
    shutil.copytree(HERE / "replay_engine", backend)
    shipped = bundled.find("python_backends/openvino_engine/backend.toml")
    text = shipped.read_text(encoding="utf-8")
    with (backend / "backend.toml").open("a", encoding="utf-8") as file:
        file.write(text[text.index("[sampling]") :])


def _write_checkpoint(folder: Path, model: ReplayModel) -> None:
    folder.mkdir()
    shutil.copyfile(model.tokenizer_json, folder / "tokenizer.json")
    vocabulary = Tokenizer.from_file(str(model.tokenizer_json)).get_vocab()
    config = {"model_type": "replay", "vocab_size": max(vocabulary.values()) + 1}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "scripts.json").write_text(json.dumps(model.scripts), encoding="utf-8")
    settings = {"chat_template": model.chat_template} if model.chat_template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
