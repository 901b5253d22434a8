# SPDX-License-Identifier: Apache-2.0
"""The API key for a gateway: the first line of the file that the plan names."""

from __future__ import annotations

from pathlib import Path

from loadlib.refusal import RunRefusedError

HEADER = "x-api-key"


def key_headers(file: Path | None) -> dict[str, str]:
    """Read the key and return its header; empty without a file. Raises RunRefusedError."""
    if file is None:
        return {}
    try:
        key = file.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise RunRefusedError(
            f"endpoint.api_key_file: {file} cannot be read: {reason}",
            remedy="check the path and its permissions",
        ) from error
    if not (key.isascii() and key.isprintable() and key):
        raise RunRefusedError(
            f"endpoint.api_key_file: the first line of {file} is not an API key",
            remedy="write an ASCII key into the first line",
        )
    return {HEADER: key}
