# SPDX-License-Identifier: Apache-2.0
"""HTTP requests to Triton, through the environment's proxies except for local ports."""

from __future__ import annotations

import urllib.request
from typing import Any
from urllib.parse import urlsplit

from tritonctl.host.addresses import is_loopback


def open_url(request: str | urllib.request.Request, seconds: float) -> Any:
    """Open a URL; the caller closes the response. Raises urllib's errors."""
    url = request if isinstance(request, str) else request.full_url
    direct = is_loopback(urlsplit(url).hostname or "")
    proxies = urllib.request.ProxyHandler({} if direct else None)
    return urllib.request.build_opener(proxies).open(request, timeout=seconds)
