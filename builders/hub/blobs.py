# SPDX-License-Identifier: Apache-2.0
"""Downloads large files of a hub model into its cache and resumes interrupted downloads.

huggingface_hub restarts a download (its pull request 4228), because two processes may write one
file on file systems without locks. Here the caller holds a lock, and a digest verifies the file.
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

from download_errors import RETRY, DownloadError

_PARALLEL_DOWNLOADS = 4
_TIMEOUT_SECONDS = 30.0
_BLOCK = 1 << 20


def download(repo: str, commit: str, digests: Mapping[str, str], blobs: Path) -> None:
    """Download files to `blobs`. `digests`: SHA-256 by file. Raises the first failure."""
    blobs.mkdir(parents=True, exist_ok=True)
    download_file = partial(_download, repo, commit, blobs)
    with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
        for done in [pool.submit(download_file, name, digest) for name, digest in digests.items()]:
            done.result()


def _download(repo: str, commit: str, blobs: Path, name: str, digest: str) -> None:
    url = hf_hub_url(repo, name, revision=commit)
    metadata = get_hf_file_metadata(url, timeout=_TIMEOUT_SECONDS, headers=build_hf_headers())
    blob = blobs / str(metadata.etag)
    if blob.exists():
        return
    partial_file = blob.with_name(f"{blob.name}.incomplete")
    # The hub redirects to a store whose address contains a signature, so it needs no token.
    token = None if urlsplit(metadata.location).netloc == urlsplit(url).netloc else False
    with partial_file.open("ab") as file:
        http_get(
            metadata.location,
            file,
            resume_size=file.tell(),
            headers=build_hf_headers(token=token),
            expected_size=metadata.size,
        )
    if _sha256(partial_file) != digest:
        partial_file.unlink()
        raise DownloadError(
            "damaged",
            f"{name} differs from the hub's description and was removed",
            f"{RETRY}; check HF_ENDPOINT and the proxy if it happens twice",
        )
    os.replace(partial_file, blob)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
