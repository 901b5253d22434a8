# SPDX-License-Identifier: Apache-2.0
"""A gateway's API key: read from its file, sent with every call, without TLS only if allowed.

    with TritonClient("gateway:8080", tls=tls, api_key=ApiKey("keys/alice")) as client:
        ...

Only the path is stored or passed on; load generators read the same file themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import HostError, UsageError
from tritonctl.host.addresses import is_loopback

HEADER = "x-api-key"
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ApiKey:
    """The first line of `file`."""

    file: str | Path
    in_clear: bool = False  # allow other machines without TLS

    def metadata(self, url: str, *, encrypted: bool) -> Metadata:
        """Read the file and return the metadata for calls to host:port.

        Raises UsageError if others could read the key in transit, HostError if the file is
        unreadable or contains no key.
        """
        on_this_machine = url.startswith("unix:") or is_loopback(url.rpartition(":")[0])
        if not (encrypted or self.in_clear or on_this_machine):
            raise UsageError(
                f"the API key of {self.file} would go to {url} in clear text: no TLS",
                remedy="give the gateway `tls` and name its authority (--ca); on a safe network, "
                "--api-key-in-clear allows it",
            )
        return ((HEADER, self._read()),)

    def check(self) -> None:
        """Raise HostError if the file is unreadable or contains no key."""
        self._read()

    def _read(self) -> str:
        try:
            text = Path(self.file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            detail = error.strerror if isinstance(error, OSError) else "not text"
            raise HostError(
                f"the API key file {self.file} cannot be read: {detail}",
                remedy="check the path and its permissions (--api-key-file, "
                "TRITONCTL_API_KEY_FILE)",
            ) from error
        key = text.partition("\n")[0].strip()
        if not (key.isascii() and key.isprintable() and key):
            raise HostError(
                f"the first line of {self.file} is not an API key: "
                + ("it has characters other than printable ASCII" if key else "it is empty"),
                remedy="ask the gateway's operator for a key; `openssl rand -hex 32` makes one",
            )
        return key
