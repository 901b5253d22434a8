// SPDX-License-Identifier: Apache-2.0
// libcuda.so.1 for machines without a GPU: the functions that builders/tensorrt/cuda_driver.py calls,
// with the driver's signatures. "Device" memory is this machine's, so a stand-in can read it.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_CONTEXT = 201
};

static int initialised, retained, current;

// As a driver: a status that it does not know has no name, and that is an error.
static int text_of(int status, const char **text, int of_name) {
  switch (status) {
    case SUCCESS: *text = of_name ? "CUDA_SUCCESS" : "no error"; break;
    case INVALID_VALUE: *text = of_name ? "CUDA_ERROR_INVALID_VALUE" : "invalid argument"; break;
    case OUT_OF_MEMORY: *text = of_name ? "CUDA_ERROR_OUT_OF_MEMORY" : "out of memory"; break;
    case NO_DEVICE:
      *text = of_name ? "CUDA_ERROR_NO_DEVICE" : "no CUDA-capable device is detected";
      break;
    default: *text = NULL; return INVALID_VALUE;
  }
  return SUCCESS;
}

int cuGetErrorName(int status, const char **text) { return text_of(status, text, 1); }

int cuGetErrorString(int status, const char **text) { return text_of(status, text, 0); }

int cuInit(unsigned int flags) {
  if (flags != 0) return INVALID_VALUE;
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible != NULL && *visible == '\0') return NO_DEVICE;
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
