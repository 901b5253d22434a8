# SPDX-License-Identifier: Apache-2.0
"""TC90x: files that others may change, links out of the repository, and files that run code.

Sources: https://docs.python.org/3/library/pickle.html;
https://github.com/triton-inference-server/server/blob/main/docs/customization_guide/deploy.md
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tritonctl.checks.analysis.file_tree import TreeEntry, first_bytes, tree_entries
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.imports import calls_of
from tritonctl.checks.model_py.source import PythonSource
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning
from tritonctl.checks.rules.security.code import unpickling_calls
from tritonctl.checks.small_file import exists

_PICKLES = (".pkl", ".pickle", ".joblib", ".dill", ".sav")
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_PROTOCOLS = tuple(bytes([0x80, number]) for number in range(2, 6))
_COMPRESSED = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda", b"\x1f\x8b", b"BZ", b"\xfd7")
_ZIP = b"PK\x03\x04"
_KEYS = (".pem", ".key")
_KEY_NAMES = ("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519")
_KEY_BYTES = 8192


def _is_writable_by_others(mode: int) -> bool:
    """Whether every user may write; not for folders with the sticky bit, which protects files."""
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


@warning(
    "TC905 writable-by-others",
    summary="files of a model that others on the machine may change",
    reason="A user who can change a model.py runs code in the server; one who can change weights "
    "controls its responses.",
)
def writable(repository: Repository) -> Iterator[Hit]:
    models = sorted(repository.models.items())
    if models and _is_writable_by_others(_mode_and_owner(repository.path)[0]):
        yield Hit(
            f"every user of this machine may add models to {repository.path.name}, or remove them",
            f"remove that permission: chmod -R o-w {repository.path}",
            model=models[0][1],
        )
        return
    for _, model in models:
        exposed = [
            entry.relative_path
            for entry in tree_entries(model)
            if not entry.is_link and _is_writable_by_others(entry.mode)
        ]
        if _is_writable_by_others(_mode_and_owner(model.path)[0]):
            exposed.insert(0, "")
        if exposed:
            name = f"{model.name}/{exposed[0]}".rstrip("/")
            more = f", and {len(exposed) - 1} more below {model.name}" if len(exposed) > 1 else ""
            yield Hit(
                f"every user of this machine may change {name}{more}",
                f"remove that permission: chmod -R o-w {model.display_path}",
                relative_path=exposed[0],
                model=model,
            )
        else:
            yield from _owned_by_another(repository, model)


def _owned_by_another(repository: Repository, model: Model) -> Iterator[Hit]:
    """Report the first file of a user other than root, the server's user and the owners."""
    if not hasattr(os, "geteuid"):  # Windows: files have no user ids
        return
    owners = {_mode_and_owner(path)[1] for path in (repository.path, model.path)}
    trusted = {0, os.geteuid(), *owners}
    for entry in tree_entries(model):
        if entry.status.st_uid not in trusted:
            yield Hit(
                f"{model.name}/{entry.relative_path} belongs to user {entry.status.st_uid}, who "
                "may change it "
                "and does not own the folders around it",
                f"change its owner: chown -R --reference={model.display_path} {model.display_path}",
                relative_path=entry.relative_path,
                model=model,
            )
            return


def _mode_and_owner(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mode, status.st_uid


@warning(
    "TC906 set-uid",
    summary="a program in a model's folder that runs as its owner (set-uid)",
    reason="No model needs it, and a vulnerability in that program exposes the whole machine.",
)
def set_uid(model: Model) -> Iterator[Hit]:
    for entry in tree_entries(model):
        if entry.is_file and entry.mode & stat.S_ISUID:
            yield Hit(
                f"{entry.relative_path} runs as its owner for every user (mode {entry.mode:o})",
                f"remove the bit: chmod u-s {model.display_path}/{entry.relative_path}",
                relative_path=entry.relative_path,
            )


@warning(
    "TC907 link-out",
    summary="a symbolic link out of the repository",
    reason="A container with only the repository lacks the target, and anyone who can write to the "
    "target controls the model.",
)
def link_outside(model: Model, repository: Repository) -> Iterator[Hit]:
    links = [entry for entry in tree_entries(model) if entry.is_link]
    if not links and not model.path.is_symlink():
        return
    root, base = os.path.realpath(repository.path), os.path.realpath(model.path)
    if not _within(base, root):
        yield _link_hit(model, "", base)
    for entry in links:
        target = os.path.realpath(entry.path)
        if not _within(target, root) and not _within(target, base) and exists(Path(target)):
            yield _link_hit(model, entry.relative_path, target)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _link_hit(model: Model, place: str, target: str) -> Hit:
    return Hit(
        f"{place or model.name} is a symbolic link out of the repository, to {target}",
        "put the file itself there, or a hard link",
        relative_path=place,
    )


@advice(
    "TC908 pickled-file",
    summary="a pickled file next to a model.py",
    reason="Reading a pickle runs code: anyone who can replace the file runs code in the server.",
)
def pickled_file(code: PythonSource, model: Model) -> Iterator[Hit]:
    if unpickling_calls(code):
        return
    loads_weights_only = any(
        call.has_constant_keyword("weights_only", True) for call in calls_of(code, {"torch.load"})
    )
    for entry in tree_entries(model):
        suffix = Path(entry.relative_path).suffix.lower()
        is_candidate = suffix in _PICKLES or (suffix in _TORCH and not loads_weights_only)
        if entry.is_file and is_candidate and _is_pickle(entry, suffix):
            yield Hit(
                f"{entry.relative_path} is a pickle: reading it runs the code inside it",
                "keep weights as safetensors, NumPy or ONNX, and objects as JSON",
                relative_path=entry.relative_path,
            )


def _is_pickle(entry: TreeEntry, suffix: str) -> bool:
    start = first_bytes(entry.path, 4)
    if start.startswith(_PROTOCOLS):
        return True
    if suffix == ".joblib" and start.startswith(_COMPRESSED):
        return True
    return start == _ZIP and suffix in _TORCH and _is_torch_state(entry.path)


def _is_torch_state(path: Path) -> bool:
    """Whether a zip file was written by torch.save and is not TorchScript."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False
    script = any("/code/" in name or name.endswith("constants.pkl") for name in names)
    return not script and any(name.endswith("data.pkl") for name in names)


@warning(
    "TC909 private-key",
    summary="a private key in a model's folder",
    reason="Repositories are copied, backed up and built into images, and the key with them.",
)
def private_key(model: Model) -> Iterator[Hit]:
    for entry in tree_entries(model):
        name = Path(entry.relative_path).name
        if not entry.is_file or not (name.lower().endswith(_KEYS) or name in _KEY_NAMES):
            continue
        start = first_bytes(entry.path, _KEY_BYTES)
        if b"-----BEGIN " in start and b"PRIVATE KEY-----" in start:
            yield Hit(
                f"{entry.relative_path} is a private key",
                "remove it from the repository, and give the server a new key",
                relative_path=entry.relative_path,
            )
