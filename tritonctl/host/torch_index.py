# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own index of wheels for CPUs: on Linux those of the public index bring CUDA, in GB.

Asked only where its wheels are wanted, and only if it answers at once.
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


def of_torch(installs: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The requirements of PyTorch among the arguments of several `pip install`."""
    return tuple(word for install in installs for word in install if _name(word) in _PACKAGES)


def _name(argument: str) -> str | None:
    try:
        return Requirement(argument).name.lower()
    except InvalidRequirement:  # an option, a file
        return None


def cpu_index() -> str | None:
    """The address of the index; TRITONCTL_TORCH_INDEX names a mirror, or none when it is empty."""
    if sys.platform != "linux":
        return None
    return os.environ.get(VARIABLE, _PUBLIC).rstrip("/") or None


def shown(index: str) -> str:
    """The address for people: without a name and a password in it."""
    return re.sub(r"//[^/@]*@", "//", index)


def answers(index: str) -> bool:
    """Whether an index shows PyTorch's wheels, through the proxies of the environment."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(_asked(index)), daemon=True)
    thread.start()
    thread.join(_SECONDS)  # the time-out of a connection does not count the search for its name
    return found == [True]


def _asked(index: str) -> bool:
    try:
        request = urllib.request.Request(f"{index}/torch/", method="HEAD")  # noqa: S310 - http(s)
        # Not urlopen(): its proxies are those of the first time that this process used it.
        with urllib.request.build_opener().open(request, timeout=_SECONDS) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004
    except (OSError, ValueError):
        return False
