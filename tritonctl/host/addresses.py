# SPDX-License-Identifier: Apache-2.0
"""Loopback addresses."""

from __future__ import annotations

import ipaddress


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address. The only accepted name is localhost."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"
