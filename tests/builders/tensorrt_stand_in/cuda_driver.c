// SPDX-License-Identifier: Apache-2.0
// libcuda.so.1 for machines without a GPU: the functions that builders/tensorrt/cuda_driver.py calls,
// with the driver's signatures. "Device" memory is this machine's, so a stand-in can read it.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201 };

static int initialised, retained, current;

int cuInit(unsigned int flags) {
  if (flags != 0) return INVALID_VALUE;
  initialised = 1;
  return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
  if (!initialised) return NOT_INITIALIZED;
  if (ordinal != 0) return INVALID_VALUE;
  *device = 0;
  return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  if (device != 0) return INVALID_VALUE;
  retained = 1;
  *context = &retained;
  return SUCCESS;
}

int cuCtxSetCurrent(void *context) {
  current = context == &retained && retained;
  return current ? SUCCESS : INVALID_CONTEXT;
}

int cuCtxSynchronize(void) { return current ? SUCCESS : INVALID_CONTEXT; }

int cuMemAlloc_v2(uint64_t *address, size_t size) {
  if (!current) return INVALID_CONTEXT;
  if (size == 0) return INVALID_VALUE;
  void *memory = malloc(size);
  if (memory == NULL) return OUT_OF_MEMORY;
  memset(memory, 0xA5, size); // what was there before, not zeros
  *address = (uint64_t)(uintptr_t)memory;
  return SUCCESS;
}

int cuMemFree_v2(uint64_t address) {
  if (!current || address == 0) return INVALID_VALUE;
  free((void *)(uintptr_t)address);
  return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  if (!current || to == 0) return INVALID_VALUE;
  memcpy((void *)(uintptr_t)to, from, size);
  return SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  if (!current || from == 0) return INVALID_VALUE;
  memcpy(to, (const void *)(uintptr_t)from, size);
  return SUCCESS;
}
