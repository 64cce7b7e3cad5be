/* runtime/model/show.h - how this room's messages write what a file says: paths, names with any
 * bytes, shapes, types. */
#pragma once
#include "runtime/model/gguf.h"

#define SHOWN_BYTES 96

/* The path, or the last 200 bytes of a longer one. */
const char *show_path(const char *path);

/* A name in printable ASCII, other bytes as \xNN, cut to fit with "..." at its end. Returns
 * shown. */
const char *show_name(struct gguf_string s, char shown[SHOWN_BYTES]);

/* "256 x 512", at least n_dims of them. Returns shown. */
const char *show_dims(const uint64_t dims[4], uint32_t n_dims, char shown[SHOWN_BYTES]);

/* "IQ2_XXS (16)", also for types that are not computed with. Returns shown. */
const char *show_tensor_type(uint32_t type, char shown[SHOWN_BYTES]);

/* "F32, F16, Q8_0": the types that are computed with. Returns shown. */
const char *show_computed_types(char shown[SHOWN_BYTES * 2]);

const char *show_value_type(enum gguf_type type);
