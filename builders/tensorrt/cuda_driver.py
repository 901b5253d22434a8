# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU through its driver's own library, which is wherever a plan runs.

Needs numpy; no torch, no package of CUDA's. The primary context is the one that TensorRT uses.
"""

import ctypes
from typing import Any

from buildlib.problems import BuildError

_LIBRARY = "libcuda.so.1"
_ADDRESS = ctypes.c_uint64
_TEXT = ctypes.POINTER(ctypes.c_char_p)
_SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [ctypes.c_uint],
    "cuDeviceGet": [ctypes.POINTER(ctypes.c_int), ctypes.c_int],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int],
    "cuCtxSetCurrent": [ctypes.c_void_p],
    "cuCtxSynchronize": [],
    "cuMemAlloc_v2": [ctypes.POINTER(_ADDRESS), ctypes.c_size_t],
    "cuMemFree_v2": [_ADDRESS],
    "cuMemcpyHtoD_v2": [_ADDRESS, ctypes.c_void_p, ctypes.c_size_t],
    "cuMemcpyDtoH_v2": [ctypes.c_void_p, _ADDRESS, ctypes.c_size_t],
    "cuGetErrorName": [ctypes.c_int, _TEXT],
    "cuGetErrorString": [ctypes.c_int, _TEXT],
}
# By the name of the error; any other one may have any cause.
_REMEDIES = {
    "CUDA_ERROR_OUT_OF_MEMORY": "Free the GPU's memory (`nvidia-smi` lists who has it), or lower "
    "engine.max_batch_size.",
    "CUDA_ERROR_NO_DEVICE": "Build where the GPU is, and let CUDA_VISIBLE_DEVICES, if it is set, "
    "name it.",
}


class Device:
    """The first GPU that CUDA sees."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise BuildError(
                f"the driver's library cannot be loaded: {error}",
                remedy="Build where the GPU is; in a container, with its driver inside (--gpus).",
            ) from error
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        number, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(number), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number.value)
        self._call("cuCtxSetCurrent", context)

    def wait(self) -> None:
        """Until all that was asked of the GPU is done."""
        self._call("cuCtxSynchronize")

    def allocate(self, size: int) -> int:
        """The address of that many new bytes. Raises BuildError when memory runs out."""
        address = _ADDRESS()
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        return address.value

    def free(self, address: int) -> None:
        """Give back what was allocated."""
        self._call("cuMemFree_v2", address)

    def write(self, address: int, array: Any) -> None:
        """Copy a contiguous array there."""
        self._call("cuMemcpyHtoD_v2", address, array.ctypes.data, array.nbytes)

    def read(self, address: int, array: Any) -> None:
        """Fill a contiguous array from there."""
        self._call("cuMemcpyDtoH_v2", array.ctypes.data, address, array.nbytes)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            error, words = (self._text(of, status) for of in ("cuGetErrorName", "cuGetErrorString"))
            raise BuildError(
                f"{name} of the GPU's driver failed: {words} ({error or f'status {status}'})",
                remedy=_REMEDIES.get(error, "Type nvidia-smi: it says how the GPU is."),
            )

    def _text(self, name: str, status: int) -> str:
        """What the driver says of a status; nothing of one that it does not know."""
        text = ctypes.c_char_p()
        getattr(self._library, name)(status, ctypes.byref(text))
        return (text.value or b"").decode("ascii", "replace")


class Buffer:
    """Memory of one tensor, which grows with what it holds."""

    def __init__(self, device: Device) -> None:
        self._device, self._address, self._size = device, 0, 0

    def room_for(self, array: Any) -> int:
        """The address of room for an array; one byte for an empty one."""
        wanted = max(1, array.nbytes)
        if wanted > self._size:
            if self._size:
                self._device.free(self._address)
            self._size, self._address = 0, self._device.allocate(wanted)
            self._size = wanted
        return self._address

    def holding(self, array: Any) -> int:
        """The address of an array's copy."""
        address = self.room_for(array)
        self._device.write(address, array)
        return address

    def read(self, array: Any) -> None:
        """Fill an array with what is there."""
        self._device.read(self._address, array)
