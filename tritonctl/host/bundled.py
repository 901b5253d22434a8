# SPDX-License-Identifier: Apache-2.0
"""Finds shipped files: in the user's project first, then in the wheel or the checkout."""

from __future__ import annotations

from pathlib import Path

from tritonctl.errors import ConfigurationError

_PACKAGE = Path(__file__).resolve().parents[1]
_WHEEL = _PACKAGE / "_bundled"
_CHECKOUT = _PACKAGE.parent


def clone() -> Path | None:
    """Return the clone that tritonctl runs from; None for an installed wheel."""
    return None if _WHEEL.is_dir() else _CHECKOUT


def search_path(project_root: Path | None) -> list[Path]:
    """Return the folders searched for content; the first match wins."""
    shipped = _WHEEL if _WHEEL.is_dir() else _CHECKOUT
    return [project_root, shipped] if project_root else [shipped]


def find(relative: str, project_root: Path | None = None) -> Path:
    """Return the path of a shipped file or folder such as `ensembles/text_generation.yaml`.

    Raises ConfigurationError when it does not exist.
    """
    for folder in search_path(project_root):
        if (folder / relative).exists():
            return folder / relative
    raise ConfigurationError(
        f"{relative} exists neither in the project nor in tritonctl",
        remedy="check the name; `pip install --force-reinstall tritonctl` restores shipped files",
    )


def text(relative: str, project_root: Path | None = None) -> str:
    """Return the text of a shipped file. Raises ConfigurationError when it does not exist."""
    return find(relative, project_root).read_text(encoding="utf-8")


def names(folder: str, marker: str, project_root: Path | None = None) -> list[str]:
    """Return the sorted names for which `<folder>/<name><marker>` exists."""
    matching = set()
    for root in search_path(project_root):
        for path in (root / folder).glob(f"*{marker}"):
            matching.add(path.relative_to(root / folder).as_posix().removesuffix(marker))
    return sorted(matching)
