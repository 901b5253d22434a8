# SPDX-License-Identifier: Apache-2.0
"""Names of Services, as CoreDNS gives them: dns.py SERVER TOKEN_FILE ADDRESS PORT.

A headless Service is the addresses of its pods, of those not ready, too, where it says so; another
one is its own address. Asks the API twice a second. UDP, A records, standard library only.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.5
TTL_SECONDS = 5  # of CoreDNS
DOMAIN = "svc.cluster.local"
_A, _IN, _NO_SUCH_NAME = 1, 1, 3
_MOST_ADDRESSES = 25  # in a datagram of 512 bytes


class Names:
    """Addresses by name, as the API has them now."""

    def __init__(self, server: str, token: str) -> None:
        self._server, self._token = server, token
        self._tls = ssl._create_unverified_context()  # noqa: S323 - the machine we run on
        self.addresses: dict[str, list[str]] = {}

    def follow(self) -> None:
        """For ever."""
        while True:
            with suppress(OSError, ValueError):
                self.addresses = self._read()
            time.sleep(POLL_SECONDS)

    def _read(self) -> dict[str, list[str]]:
        endpoints = {_key(each): each for each in self._list("endpoints")}
        return {
            f"{name}.{namespace}.{DOMAIN}": _of_service(service, endpoints.get((namespace, name)))
            for service in self._list("services")
            for namespace, name in [_key(service)]
        }

    def _list(self, kind: str) -> list[dict[str, Any]]:
        request = urllib.request.Request(  # noqa: S310
            f"{self._server}/api/v1/{kind}", headers={"Authorization": f"Bearer {self._token}"}
        )
        with urllib.request.urlopen(request, timeout=5, context=self._tls) as answer:  # noqa: S310
            items: list[dict[str, Any]] = json.load(answer)["items"]
        return items


def _key(record: dict[str, Any]) -> tuple[str, str]:
    return record["metadata"]["namespace"], record["metadata"]["name"]


def _of_service(service: dict[str, Any], endpoints: dict[str, Any] | None) -> list[str]:
    if service["spec"].get("clusterIP", "None") != "None":
        return [service["spec"]["clusterIP"]]
    kinds = ["addresses"]
    if service["spec"].get("publishNotReadyAddresses"):
        kinds.append("notReadyAddresses")
    subsets = (endpoints or {}).get("subsets") or []
    found = {each["ip"] for subset in subsets for kind in kinds for each in subset.get(kind) or []}
    return sorted(found)


def answered(question: bytes, addresses: dict[str, list[str]]) -> bytes:
    """The datagram that answers one."""
    number, flags = struct.unpack("!HH", question[:4])
    labels, place = [], 12
    while length := question[place]:
        labels.append(question[place + 1 : place + 1 + length].decode("ascii", "replace"))
        place += length + 1
    kind, _ = struct.unpack("!HH", question[place + 1 : place + 5])
    found = addresses.get(".".join(labels).lower())
    records = [
        struct.pack("!HHHIH", 0xC00C, _A, _IN, TTL_SECONDS, 4) + ipaddress.ip_address(each).packed
        for each in (found or [])[:_MOST_ADDRESSES]
        if kind == _A
    ]
    status = 0x8480 | flags & 0x0100 | (_NO_SUCH_NAME if found is None else 0)
    head = struct.pack("!HHHHHH", number, status, 1, len(records), 0, 0)
    return head + question[12 : place + 5] + b"".join(records)


def main(server: str, token_file: str, address: str, port: int) -> None:
    """Until killed."""
    names = Names(server, Path(token_file).read_text(encoding="ascii").strip())
    threading.Thread(target=names.follow, daemon=True).start()
    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening.bind((address, port))
    while True:
        question, client = listening.recvfrom(512)
        with suppress(IndexError, struct.error):
            listening.sendto(answered(question, names.addresses), client)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
