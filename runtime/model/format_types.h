/* runtime/model/format_types.h - every tensor type that the format names, computed with here or not.
 *
 * kernels/tensor_type.h says what can be computed with; this table is wider, so that a file with
 * other types can still be checked to its last byte, named in a message and inspected.
 */
#pragma once
#include "kernels/tensor_type.h"

/* The type's name and the geometry of its blocks, or NULL for a number that the format does not
 * name. What tensor_type_find() knows is answered by it. */
const struct tensor_type_info *format_type_find(uint32_t type);
