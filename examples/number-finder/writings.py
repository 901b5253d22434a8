# SPDX-License-Identifier: Apache-2.0
"""Seven ways to write a whole number from 0 to 9,999: digits, and those of number-speller."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

SPELLING = Path(__file__).resolve().parents[1] / "number-speller" / "spelling.py"


def _module(path: Path) -> ModuleType:
    """Load the module in ``path``, which lies beside no other of ours."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


_spelling = _module(SPELLING)
LIMIT = 10_000
WRITINGS: dict[str, Callable[[int], str]] = {"Digits": str, **_spelling.SCRIPTS}


def write(number: int, writing: str) -> str:
    """Write ``number`` in one of :data:`WRITINGS`.

    >>> [write(7342, name) for name in ("Digits", "English", "Chinese", "Korean")]
    ['7342', 'seven thousand three hundred forty-two', '七千三百四十二', '칠천삼백사십이']
    """
    if not 0 <= number < LIMIT:
        raise ValueError(f"{number} is not in 0..{LIMIT - 1}")
    return WRITINGS[writing](number)
