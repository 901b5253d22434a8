# SPDX-License-Identifier: Apache-2.0
"""Allocates and copies GPU memory through the driver's library, which every plan needs anyway.

Needs numpy, but neither torch nor a CUDA package. TensorRT uses the same primary context.
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
# By error name. Other errors may have any cause.
_REMEDIES = {
    "CUDA_ERROR_OUT_OF_MEMORY": "Free the GPU's memory (`nvidia-smi` lists who has it), or lower "
    "engine.max_batch_size.",
    "CUDA_ERROR_NO_DEVICE": "Build where the GPU is, and let CUDA_VISIBLE_DEVICES, if it is set, "
    "name it.",
}


class CudaDevice:
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

    def synchronize(self) -> None:
        """Wait until the GPU has finished all work."""
        self._call("cuCtxSynchronize")

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes and return their address. Raises BuildError without memory."""
        address = _ADDRESS()
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        return address.value

    def free(self, address: int) -> None:
        """Free an allocation."""
        self._call("cuMemFree_v2", address)

    def write(self, address: int, array: Any) -> None:
        """Copy a contiguous array to `address`."""
        self._call("cuMemcpyHtoD_v2", address, array.ctypes.data, array.nbytes)

    def read(self, address: int, array: Any) -> None:
        """Fill a contiguous array from `address`."""
        self._call("cuMemcpyDtoH_v2", array.ctypes.data, address, array.nbytes)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            error, words = (self._text(of, status) for of in ("cuGetErrorName", "cuGetErrorString"))
            raise BuildError(
                f"{name} of the GPU's driver failed: {words} ({error or f'status {status}'})",
                remedy=_REMEDIES.get(error, "Type nvidia-smi: it shows the GPU's state."),
            )

    def _text(self, name: str, status: int) -> str:
        """Return the driver's text for a status, or "" for an unknown one."""
        text = ctypes.c_char_p()
        getattr(self._library, name)(status, ctypes.byref(text))
        return (text.value or b"").decode("ascii", "replace")


class CudaBuffer:
    """GPU memory of one tensor. It grows as needed."""

    def __init__(self, device: CudaDevice) -> None:
        self._device, self._address, self._size = device, 0, 0

    def reserve(self, array: Any) -> int:
        """Return the address of memory for an array, at least one byte."""
        required_bytes = max(1, array.nbytes)
        if required_bytes > self._size:
            if self._size:
                self._device.free(self._address)
            self._size, self._address = 0, self._device.allocate(required_bytes)
            self._size = required_bytes
        return self._address

    def write(self, array: Any) -> int:
        """Copy an array to the GPU and return its address."""
        address = self.reserve(array)
        self._device.write(address, array)
        return address

    def read(self, array: Any) -> None:
        """Fill an array from the buffer."""
        self._device.read(self._address, array)
