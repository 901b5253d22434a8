# SPDX-License-Identifier: Apache-2.0
"""Errors of a full disk, which C++ libraries report without an error number. Standard library."""

import errno
import json
import shutil
from pathlib import Path

from buildlib.problems import BuildError

# Bytes. A file that was not written whole still takes its space, unless the library removes it.
_FULL_DISK_BYTES = 1 << 20
# What a failed write of libstdc++ says (OpenVINO's serialiser), and of other libraries.
_WRITE_FAILURES = ("iostream error", "No space left on device", "Disk quota exceeded")
_WEIGHTS = ("*.safetensors", "*.bin", "*.onnx", "*.onnx_data")


def full_disk_error(error: Exception, stage: str, request: Path | None = None) -> BuildError | None:
    """Return the BuildError of a failed write in the working directory; None for other errors.

    request: the build request, whose checkpoint shows how much an engine takes.
    """
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free
    is_full = free < _FULL_DISK_BYTES or (
        isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    )
    if not is_full and not any(words in str(error) for words in _WRITE_FAILURES):
        return None
    written = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    needed = _weights_bytes(request)
    size = f"; the checkpoint's weights have {_megabytes(needed)}" if needed else ""
    return BuildError(
        f"no space left in {folder} (stage {stage}): {_megabytes(free)} free, "
        f"{_megabytes(written)} written so far{size}",
        remedy=f"Free space there (`df -h {folder}`; a quota counts, too) and build again. "
        "`tritonctl plan` says how much it takes, `tritonctl artefacts prune` removes engines "
        "that nothing needs.",
    )


def _weights_bytes(request: Path | None) -> int:
    """Return the size of the checkpoint's weights; 0 if unknown."""
    if request is None:
        return 0
    try:
        checkpoint = Path(json.loads(request.read_text(encoding="utf-8"))["checkpoint"])
        return sum(file.stat().st_size for kind in _WEIGHTS for file in checkpoint.glob(kind))
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
