# SPDX-License-Identifier: Apache-2.0
"""Refuse new requests while a server drains. Standard library only: containers run it, too.

tritonserver 2.51 cannot do so: until SIGTERM it takes every request, and from then on it cuts off
the streams of ensembles. An ensemble that is unloaded refuses new requests at once, and its running
streams end whole, because its steps stay loaded.
"""

from __future__ import annotations

import http.client
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

_STEP = re.compile(r'\bmodel_name\s*:\s*"([^"]+)"')
_RESTRICTION = "--http-restricted-api"
_DEFAULT_PORT = "8000"
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - compared, not listened on
_UNLOAD_SECONDS = 5.0  # the answer comes once the last stream has ended; nobody needs it


def outer_ensembles(repository: Path, only: Collection[str] | None = None) -> list[str]:
    """Return the ensembles of a repository that are no step of another; only: names to choose from.

    Models without ensembles are not refused: unloading a decoupled model would cut off its streams.
    """
    texts = {
        file.parent.name: text
        for file in sorted(repository.glob("*/config.pbtxt"))
        if "ensemble_scheduling" in (text := file.read_text(encoding="utf-8", errors="replace"))
    }
    inner = {step for text in texts.values() for step in _STEP.findall(text)}
    return [name for name in texts if name not in inner and (only is None or name in only)]


def start_unloading(
    argv: Sequence[str], ensembles: Collection[str], on_refusal: Callable[[str], object]
) -> None:
    """Ask the server with this command line to unload the ensembles; do not wait for it.

    on_refusal: called from a thread with what Triton says if it refuses.
    """
    options = dict(argument.split("=", 1) for argument in argv if "=" in argument)
    address = options.get("--http-address", _ANY_ADDRESS)
    host = "127.0.0.1" if address == _ANY_ADDRESS else address
    url = f"http://{host}:{options.get('--http-port', _DEFAULT_PORT)}/v2/repository/models"
    _, _, header = options.get(_RESTRICTION, "").partition(":")
    name, _, token = header.partition("=")
    headers = {name: token} if name else {}
    for ensemble in ensembles:
        arguments = f"{url}/{ensemble}/unload", headers, on_refusal
        threading.Thread(target=_post, args=arguments, daemon=True).start()


def _post(url: str, headers: Mapping[str, str], on_refusal: Callable[[str], object]) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, data=b"{}", headers=dict(headers), method="POST")  # noqa: S310
    try:
        direct.open(request, timeout=_UNLOAD_SECONDS).close()
    except urllib.error.HTTPError as error:
        on_refusal(f"Triton does not unload {url}: {error.code} {error.reason}")
    except (OSError, http.client.HTTPException):
        pass  # it answers once the last stream has ended, or is gone
