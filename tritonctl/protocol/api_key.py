# SPDX-License-Identifier: Apache-2.0
"""An API key of a gateway: read from its file, sent with every call, in the clear only if allowed.

    with TritonClient("gateway:8080", tls=tls, api_key=ApiKey("keys/alice")) as client:
        ...

Only the path is ever stored or passed on; load generators read the same file themselves.
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
    """The first line of `file`. in_clear: send it to other machines without TLS, too."""

    file: str | Path
    in_clear: bool = False

    def metadata(self, url: str, *, encrypted: bool) -> Metadata:
        """The metadata of each call to host:port; reads the file.

        Raises UsageError for a key that others could read in transit, HostError for a file that
        cannot be read or holds no key.
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
        """Raise HostError for a file that cannot be read or holds no key."""
        self._read()

    def _read(self) -> str:
        try:
            text = Path(self.file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise HostError(
                f"the API key file {self.file} cannot be read: {why}",
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
