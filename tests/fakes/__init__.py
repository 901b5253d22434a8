# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for packages that need a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

LAST_WITH_ENGINES = "1.2.1"
FAKES = Path(__file__).parent
ARGUMENTS = FAKES.parents[1] / "builders" / "tensorrt_llm" / "arguments.toml"


def copy_tensorrt_llm(folder: Path, version: str) -> Path:
    """The stand-in of a release of TensorRT-LLM, as a package in `folder`."""
    package = folder / "tensorrt_llm"
    shutil.copytree(FAKES / "tensorrt_llm", package, ignore=shutil.ignore_patterns("__pycache__"))
    table = f"TEXT = {ARGUMENTS.read_text(encoding='utf-8')!r}\n"
    (package / "_arguments.py").write_text(table, encoding="utf-8")
    text = (package / "_version.py").read_text(encoding="utf-8")
    changed = text.replace(f'"{LAST_WITH_ENGINES}"', f'"{version}"')
    (package / "_version.py").write_text(changed, encoding="utf-8")
    if version != LAST_WITH_ENGINES:
        (package / "_tensorrt_engine.py").unlink()
    return package
