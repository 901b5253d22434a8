# SPDX-License-Identifier: Apache-2.0
"""The API key that a gateway asks for: the first line of the file that the plan names."""

from __future__ import annotations

from pathlib import Path

from loadlib.refusal import Refusal

HEADER = "x-api-key"


def key_headers(file: Path | None) -> dict[str, str]:
    """What goes with every request, read now; nothing without a file. Refusal for a bad one."""
    if file is None:
        return {}
    try:
        key = file.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Refusal(
            f"endpoint.api_key_file: {file} cannot be read: {why}",
            remedy="check the path and its permissions",
        ) from error
    if not (key.isascii() and key.isprintable() and key):
        raise Refusal(
            f"endpoint.api_key_file: the first line of {file} is no API key",
            remedy="write the key there, in ASCII",
        )
    return {HEADER: key}


def key_metadata(file: Path | None) -> tuple[tuple[str, str], ...] | None:
    """The same for gRPC."""
    return tuple(key_headers(file).items()) or None
