# SPDX-License-Identifier: Apache-2.0
"""Checks that the weight files of a checkpoint are present and whole. Standard library only."""

import json
import zipfile
from pathlib import Path

from buildlib.problems import BuildError, read_json_object

DOWNLOAD_AGAIN = "Download the checkpoint again and let it finish; compare the file sizes."
_SAVE_MODEL = (
    "Save the weights as safetensors: "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER)."
)

_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# The names that transformers reads: save_pretrained() wrote them before safetensors.
_PICKLE, _PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_HEADER_LENGTH_BYTES = 8
# The limit of the safetensors format.
_MAX_HEADER_BYTES = 100_000_000


def check_weights(folder: Path, *, allow_pickle: bool = False) -> None:
    """Check that the checkpoint in `folder` has all its weights as safetensors.

    `allow_pickle`: without safetensors, accept pickles and do not check their content.

    Raises:
        BuildError: weights are missing, pickled, truncated or damaged.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = _indexed_shards(folder, index)
    elif (folder / "model.safetensors").is_file():
        shards = [folder / "model.safetensors"]
    elif allow_pickle and has_pickles(folder):
        _check_pickles(folder)
        return
    else:
        raise _no_weights(folder)
    for shard in shards:
        check_safetensors(shard)


def tensor_names(folder: Path) -> tuple[str, ...]:
    """Return the tensor names of a checked checkpoint. For pickles, return ()."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return tuple(read_json_object(index, remedy=DOWNLOAD_AGAIN)["weight_map"])
    file = folder / "model.safetensors"
    if not file.is_file():
        return ()
    with file.open("rb") as content:
        length = int.from_bytes(content.read(_HEADER_LENGTH_BYTES), "little")
        names = json.loads(content.read(length))
    return tuple(name for name in names if name != "__metadata__")


def has_pickles(folder: Path) -> bool:
    """Whether the checkpoint in `folder` has pickled weights that transformers reads."""
    return any((folder / name).is_file() for name in (_PICKLE, _PICKLE_INDEX))


def _check_pickles(folder: Path) -> None:
    index = folder / _PICKLE_INDEX
    for file in _indexed_shards(folder, index) if index.is_file() else [folder / _PICKLE]:
        refuse_lfs_pointer(file)
        _refuse_compressed(file)


def _refuse_compressed(file: Path) -> None:
    """Refuse what PyTorch never writes: it stores its records, and a bomb compresses them."""
    try:
        with zipfile.ZipFile(file) as archive:
            compressed = [e for e in archive.infolist() if e.compress_type != zipfile.ZIP_STORED]
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return  # the format before PyTorch 1.6, or a damaged file, which PyTorch reports
    if compressed:
        entry = compressed[0]
        raise BuildError(
            f"{file}: {entry.filename} is compressed, {entry.compress_size} to {entry.file_size} "
            "bytes, as PyTorch never does it",
            remedy=_SAVE_MODEL,
        )


def _indexed_shards(folder: Path, index: Path) -> list[Path]:
    weight_map = read_json_object(index, remedy=DOWNLOAD_AGAIN).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BuildError(f"{index}: has no weight_map", remedy=DOWNLOAD_AGAIN)
    shards = sorted({str(name) for name in weight_map.values()})
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise BuildError(
            f"{index}: lists {len(shards)} files, of which {len(missing)} are missing: "
            + ", ".join(missing),
            remedy=DOWNLOAD_AGAIN,
        )
    return [folder / name for name in shards]


def _no_weights(folder: Path) -> BuildError:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        return BuildError(
            f"{folder} has its weights as Python pickles only ({', '.join(pickles)}), "
            "and reading a pickle can run any code",
            remedy=f"{_SAVE_MODEL} Do it where you trust the file; or have the build read it: set "
            f"engine.allow_pickle to true ({_PICKLE} and its shards).",
        )
    return BuildError(
        f"{folder} has no weights: no model.safetensors, no model.safetensors.index.json",
        remedy="Copy the weights next to config.json. " + _SAVE_MODEL,
    )


def check_safetensors(path: Path) -> None:
    """Check by its header that a safetensors file is whole.

    Format (https://github.com/huggingface/safetensors#format): 8 bytes little-endian length N,
    N bytes of JSON whose `data_offsets` count from the end of the header, then the data.

    Raises:
        BuildError: the file is a git-lfs pointer, truncated, or not safetensors.
    """
    refuse_lfs_pointer(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_HEADER_LENGTH_BYTES), "little")
        if length > _MAX_HEADER_BYTES and size >= _HEADER_LENGTH_BYTES:
            raise BuildError(f"{path}: is not a safetensors file", remedy=_SAVE_MODEL)
        if size < _HEADER_LENGTH_BYTES + length:
            raise _half_downloaded(path, f"it ends inside its header, at {size} bytes")
        header = file.read(length)
    expected = _HEADER_LENGTH_BYTES + length + _data_end(path, header)
    if size < expected:
        raise _half_downloaded(path, f"{size} of {expected} bytes are there")
    if size > expected:
        problem = f"{path}: is damaged: {size} bytes, and its header accounts for {expected}"
        raise BuildError(problem, remedy=DOWNLOAD_AGAIN)


def _data_end(path: Path, header: bytes) -> int:
    try:
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        return max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        problem = f"{path}: its safetensors header is damaged ({type(error).__name__}: {error})"
        raise BuildError(problem, remedy=DOWNLOAD_AGAIN) from error


def _half_downloaded(path: Path, detail: str) -> BuildError:
    return BuildError(f"{path}: is half-downloaded: {detail}", remedy=DOWNLOAD_AGAIN)


def refuse_lfs_pointer(path: Path) -> None:
    """Raise BuildError if `path` is a git-lfs pointer instead of the file."""
    with path.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
    if start == _LFS_POINTER:
        raise BuildError(
            f"{path}: is a git-lfs pointer, not the file itself",
            remedy=f"Fetch the real files: git -C {path.parent} lfs pull.",
        )
