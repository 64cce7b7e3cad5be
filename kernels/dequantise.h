/* kernels/dequantise.h - weights as fp32, bit for bit what the GGUF types define. Internal to the
 * room. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Writes n values of a row whose blocks start at `from`; n is a whole number of blocks of a known
 * type. */
void dequantise(uint32_t type, const void *from, float *to, size_t n);
