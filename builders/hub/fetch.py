# SPDX-License-Identifier: Apache-2.0
"""Downloads a model of the Hugging Face Hub: `fetch.py --request R.json --result S.json`.

R: `repo`, `revision`, `records` (a folder). Before the download starts, COMMIT.json in `records`
lists the files. S: `status` ok with `commit`, `files`, `bytes`; or failed with `kind`, `problem`,
`remedy`. Lines of standard output: `@size MISSING PARTIAL`, `@bytes PRESENT TOTAL`. The token is
in HF_TOKEN.
"""

import argparse
import json
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.hf_api import ModelInfo

import blobs
from download_errors import RETRY, DownloadError, endpoint, to_download_error
from selection import PICKLES, has_weights, required_files
from validation import check_commit, check_names, check_responses, check_revision

_PROGRESS_SECONDS = 0.5
_TIMEOUT_SECONDS = 30.0
_PARALLEL_DOWNLOADS = 4


def print_line(line: str) -> None:
    """Write one line to stdout at once. The host displays it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def write_json(file: Path, record: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
    os.replace(temporary, file)


def fetch(request: dict[str, Any]) -> dict[str, Any]:
    """Download what is missing of a model. Raises DownloadError, or what the library raises."""
    repo, revision = request["repo"], request["revision"]
    check_revision(revision)
    info = HfApi().model_info(
        repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_SECONDS
    )
    commit = check_commit(repo, revision, info.sha)
    check_names(repo, (sibling.rfilename for sibling in info.siblings or ()))
    check_responses(commit)
    sizes = _select_files(repo, info)
    folder = Path(constants.HF_HUB_CACHE, f"models--{repo.replace('/', '--')}")
    snapshot = folder / "snapshots" / commit
    write_json(Path(request["records"], f"{commit}.json"), {"revision": revision, "files": sizes})
    missing = [name for name, size in sizes.items() if _file_size(snapshot / name) != size]
    if missing:
        _check_space(folder, repo, sum(sizes[name] for name in missing))
        present_bytes = sum(sizes.values()) - sum(sizes[name] for name in missing)
        with _report_progress(folder / "blobs", present_bytes, sum(sizes.values())):
            blobs.download(repo, commit, _digests(info, missing), folder / "blobs")
            _link_files(repo, commit, missing)
    _verify_sizes(folder, snapshot, sizes)
    if revision != commit:
        _write_reference(folder / "refs" / revision, commit)
    return {"commit": commit, "files": sizes, "bytes": sum(sizes[name] for name in missing)}


def _link_files(repo: str, commit: str, names: list[str]) -> None:
    """Download small files and link all in the snapshot.

    Not snapshot_download(): it asks for commit and names again, and takes the names as patterns.
    """
    download_file = partial(hf_hub_download, repo, revision=commit)
    with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
        for done in [pool.submit(download_file, name) for name in names]:
            done.result()


def _digests(info: ModelInfo, names: list[str]) -> dict[str, str]:
    """Return the SHA-256 of the large files among `names`. The hub has no others."""
    large = {
        sibling.rfilename: sibling.lfs.sha256 for sibling in info.siblings or () if sibling.lfs
    }
    return {name: large[name] for name in names if name in large}


def _select_files(repo: str, info: ModelInfo) -> dict[str, int]:
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    selected = required_files(sizes)
    if not has_weights(selected):
        pickles = [name for name in sizes if any(fnmatch(name, pattern) for pattern in PICKLES)]
        note = f": its weights are pickles ({pickles[0]})" if pickles else ""
        raise DownloadError(
            "weights",
            f"{repo} has neither safetensors nor an ONNX graph at {endpoint()}{note}",
            "choose a model or a `revision:` with safetensors; pickles are never fetched: "
            "convert them (`save_pretrained()`) and name the folder in `checkpoint:`",
        )
    return {name: sizes[name] for name in selected}


def _check_space(folder: Path, repo: str, missing_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial_bytes = sum(filter(None, map(_file_size, (folder / "blobs").glob("*.incomplete"))))
    free = shutil.disk_usage(folder).free
    print_line(f"@size {missing_bytes} {partial_bytes}")
    if missing_bytes - partial_bytes > free:
        raise DownloadError(
            "disk",
            f"{repo} takes {(missing_bytes - partial_bytes) / 1e9:.1f} GB more, and {folder} has "
            f"{free / 1e9:.1f} GB left",
            f"free space, or set HF_HOME to a folder on another disk; then {RETRY}",
        )


@contextmanager
def _report_progress(blobs: Path, present_bytes: int, total_bytes: int) -> Iterator[None]:
    """Print the number of present bytes every half second, earlier ones included."""
    initial_bytes = _total_size(blobs, complete=True)
    done = threading.Event()

    def report() -> None:
        while not done.wait(_PROGRESS_SECONDS):
            current_bytes = present_bytes + _total_size(blobs) - initial_bytes
            print_line(f"@bytes {min(total_bytes, current_bytes)} {total_bytes}")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _total_size(blobs: Path, *, complete: bool = False) -> int:
    with suppress(FileNotFoundError):
        files = [file for file in blobs.iterdir() if not complete or file.suffix != ".incomplete"]
        return sum(filter(None, map(_file_size, files)))
    return 0


def _verify_sizes(folder: Path, snapshot: Path, sizes: dict[str, int]) -> None:
    wrong = [name for name, size in sizes.items() if _file_size(snapshot / name) != size]
    for file in (snapshot / name for name in wrong):
        blob = file.resolve()
        # A link that somebody else made is removed, and never the file that it names.
        if blob.parent == (folder / "blobs").resolve():
            blob.unlink(missing_ok=True)
        file.unlink(missing_ok=True)
    if wrong:
        raise DownloadError(
            "damaged",
            f"{wrong[0]} differs in size from the hub's description and was removed",
            f"{RETRY}; check HF_ENDPOINT and the proxy if it happens twice",
        )


def _write_reference(reference: Path, commit: str) -> None:
    """Write the commit of a revision where the library and other tools read it offline."""
    reference.parent.mkdir(parents=True, exist_ok=True)
    temporary = reference.with_name(f".{reference.name}.{os.getpid()}")
    temporary.write_text(commit, encoding="utf-8")
    os.replace(temporary, reference)


def _file_size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None


def main() -> int:
    """Run the program. Return exit status 0 if and only if the result is ok."""
    parser = argparse.ArgumentParser(description="Download a model of the Hugging Face Hub.")
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    request = json.loads(arguments.request.read_text(encoding="utf-8"))
    try:
        write_json(arguments.result, {"status": "ok", **fetch(request)})
    except Exception as error:
        traceback.print_exc()
        failure = to_download_error(error, request["repo"], request["revision"])
        record = {"kind": failure.kind, "problem": failure.problem, "remedy": failure.remedy}
        write_json(arguments.result, {"status": "failed", **record})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
