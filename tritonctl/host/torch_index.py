# SPDX-License-Identifier: Apache-2.0
"""PyTorch's index of CPU wheels: on Linux, wheels of the public index bring gigabytes of CUDA.

It is only used for CPU environments, and only if it responds at once.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import urllib.request
from collections.abc import Iterable, Sequence

from packaging.requirements import InvalidRequirement, Requirement

VARIABLE = "TRITONCTL_TORCH_INDEX"
_PUBLIC = "https://download.pytorch.org/whl/cpu"
_PACKAGES = {"torch", "torchvision", "torchaudio"}
_SECONDS = 3.0


def torch_requirements(installs: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return PyTorch's requirements among the arguments of several `pip install`."""
    return tuple(word for install in installs for word in install if _name(word) in _PACKAGES)


def _name(argument: str) -> str | None:
    try:
        return Requirement(argument).name.lower()
    except InvalidRequirement:  # an option, a file
        return None


def cpu_index() -> str | None:
    """Return the index' address; TRITONCTL_TORCH_INDEX sets a mirror, or disables it if empty."""
    if sys.platform != "linux":
        return None
    return os.environ.get(VARIABLE, _PUBLIC).rstrip("/") or None


def without_credentials(index: str) -> str:
    """Return an address without user name and password, for messages."""
    return re.sub(r"//[^/@]*@", "//", index)


def is_reachable(index: str) -> bool:
    """Whether an index has PyTorch's wheels, through the proxies of the environment."""
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(_responds(index)), daemon=True)
    thread.start()
    thread.join(_SECONDS)  # a connection's timeout does not include name resolution
    return results == [True]


def _responds(index: str) -> bool:
    try:
        request = urllib.request.Request(f"{index}/torch/", method="HEAD")  # noqa: S310 - http(s)
        # Not urlopen(): it keeps the proxies of its first call.
        with urllib.request.build_opener().open(request, timeout=_SECONDS) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004
    except (OSError, ValueError):
        return False
