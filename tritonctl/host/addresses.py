# SPDX-License-Identifier: Apache-2.0
"""Which addresses only this machine reaches."""

from __future__ import annotations

import ipaddress


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address. Of names, only localhost counts."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"
