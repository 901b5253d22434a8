# SPDX-License-Identifier: Apache-2.0
"""Decode token ids with the checkpoint's tokenizer, in an interpreter that has the library."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tritonctl.engines.sources.checkpoint import checkpoint_path
from tritonctl.errors import ConfigurationError, HostError, TritonctlError
from tritonctl.host.environments import environment_folder, environment_python
from tritonctl.project.schema import Project
from tritonctl.protocol.model_config import Config
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.server_environment import server_recipe
from tritonctl.repository.unary import UNARY
from tritonctl.smoke.text_checks import Decode

_PROGRAM = Path(__file__).with_name("decode_ids.py")
_SECONDS = 60.0


def decoder_of(project: Project | None, model: str, steps: Mapping[str, Config]) -> Decode | str:
    """Return the decoder of a model's checkpoint, or a str with the reason why it has none."""
    public = model.removesuffix(f"_{UNARY}")
    entry = project.models.get(model) or project.models.get(public) if project else None
    if project is None or entry is None:
        return "no project names its checkpoint"
    try:
        file = checkpoint_path(project, entry) / "tokenizer.json"
    except ConfigurationError as error:
        return error.problem
    if not file.is_file():
        return f"{entry.checkpoint} has no tokenizer.json"
    python = _interpreter(project)
    if python is None:
        return "the package tokenizers is not installed: `pip install tokenizers`"
    keeps_special_tokens = (
        config.get("parameters", {}).get("skip_special_tokens", {}).get("string_value") == "false"
        for config in steps.values()
    )
    skip = not any(keeps_special_tokens)

    return lambda ids: _decode(python, file, ids, skip=skip)


def _interpreter(project: Project) -> Path | None:
    """Return this interpreter or the embedded server's, whichever has `tokenizers`."""
    if importlib.util.find_spec("tokenizers"):
        return Path(sys.executable)
    try:
        python = environment_python(
            environment_folder(server_recipe(plan_repository(project).programs))
        )
    except TritonctlError:  # not built on this machine
        return None
    return python if python.is_file() else None


def _decode(python: Path, file: Path, ids: Sequence[int], *, skip: bool) -> str:
    request = {"file": str(file), "ids": list(ids), "skip_special_tokens": skip}
    process = subprocess.run(
        [python, _PROGRAM],
        input=json.dumps(request),
        capture_output=True,
        encoding="utf-8",
        timeout=_SECONDS,
        check=False,
    )
    if process.returncode != 0:
        raise HostError(
            f"{file} could not be used: {process.stderr.strip()[-200:]}",
            remedy="check the checkpoint's tokenizer.json",
        )
    return str(json.loads(process.stdout))
