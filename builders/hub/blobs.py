# SPDX-License-Identifier: Apache-2.0
"""Large files of a hub's model into its cache, each resumed where an earlier download ended.

huggingface_hub itself begins again (its pull request 4228): two processes may write one
file where locks do not hold. The caller holds a lock, and a digest says whether the file is right.
"""

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers

from refusals import AGAIN, Refusal

_AT_ONCE = 4
_ANSWER_SECONDS = 30.0
_BLOCK = 1 << 20


def download(repo: str, commit: str, digests: Mapping[str, str], blobs: Path) -> None:
    """Bring files, given with their SHA-256, into `blobs/`. Raises the first that fails."""
    blobs.mkdir(parents=True, exist_ok=True)
    one = partial(_download, repo, commit, blobs)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done in [pool.submit(one, name, digest) for name, digest in digests.items()]:
            done.result()


def _download(repo: str, commit: str, blobs: Path, name: str, digest: str) -> None:
    url = hf_hub_url(repo, name, revision=commit)
    about = get_hf_file_metadata(url, timeout=_ANSWER_SECONDS, headers=build_hf_headers())
    blob = blobs / str(about.etag)
    if blob.exists():
        return
    part = blob.with_name(f"{blob.name}.incomplete")
    # The store that the hub redirects to has its own signature in the address.
    token = None if urlsplit(about.location).netloc == urlsplit(url).netloc else False
    with part.open("ab") as file:
        http_get(
            about.location,
            file,
            resume_size=file.tell(),
            headers=build_hf_headers(token=token),
            expected_size=about.size,
        )
    if _sha256(part) != digest:
        part.unlink()
        raise Refusal(
            "damaged",
            f"{name} did not come as the hub describes it, and was removed",
            f"{AGAIN}; check HF_ENDPOINT and the proxy if it happens twice",
        )
    os.replace(part, blob)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
