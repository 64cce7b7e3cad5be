/* runtime/model/show.c - how this room's messages write what a file says.
 *
 * Pure functions on the caller's buffers. Names in a model file may hold any bytes; a message is
 * one line that may end in a terminal or in a protocol line, so nothing but printable ASCII of a
 * name gets through.
 */
#include "runtime/model/show.h"
#include <stdio.h>
#include <string.h>
#include "runtime/model/format_types.h"

const char *show_path(const char *path)
{
    size_t n = strlen(path);
    return n > 200 ? path + n - 200 : path;
}

const char *show_name(struct gguf_string s, char shown[SHOWN_BYTES])
{
    static const char hex[] = "0123456789abcdef";
    size_t at = 0;
    for (size_t i = 0; i < s.n_bytes; i++) {
        unsigned char c = (unsigned char)s.bytes[i];
        if (at + sizeof "\\xNN..." > SHOWN_BYTES) {
            memcpy(shown + at, "...", 3);
            at += 3;
            break;
        }
        if (c >= 0x20 && c < 0x7f) {
            shown[at++] = (char)c;
            continue;
        }
        shown[at++] = '\\';
        shown[at++] = 'x';
        shown[at++] = hex[c >> 4];
        shown[at++] = hex[c & 15];
    }
    shown[at] = '\0';
    return shown;
}

const char *show_dims(const uint64_t dims[4], uint32_t n_dims, char shown[SHOWN_BYTES])
{
    size_t at = 0;
    shown[0] = '\0';
    for (uint32_t d = 0; d < 4 && at < SHOWN_BYTES; d++)
        if (d < n_dims || dims[d] != 1)
            at += (size_t)snprintf(shown + at, SHOWN_BYTES - at, "%s%llu", d == 0 ? "" : " x ",
                                   (unsigned long long)dims[d]);
    return shown;
}

const char *show_tensor_type(uint32_t type, char shown[SHOWN_BYTES])
{
    const struct tensor_type_info *info = format_type_find(type);
    if (info != NULL)
        (void)snprintf(shown, SHOWN_BYTES, "%s (%u)", info->name, type);
    else
        (void)snprintf(shown, SHOWN_BYTES, "type %u, which the format does not name", type);
    return shown;
}

const char *show_computed_types(char shown[SHOWN_BYTES * 2])
{
    size_t at = 0;
    shown[0] = '\0';
    for (uint32_t type = 0; type < 64 && at < SHOWN_BYTES * 2; type++)
        if (tensor_type_find(type) != NULL)
            at += (size_t)snprintf(shown + at, SHOWN_BYTES * 2 - at, "%s%s", at == 0 ? "" : ", ",
                                   tensor_type_find(type)->name);
    return shown;
}

const char *show_value_type(enum gguf_type type)
{
    static const char *const names[] = {
        [GGUF_U8] = "u8",         [GGUF_I8] = "i8",       [GGUF_U16] = "u16", [GGUF_I16] = "i16",
        [GGUF_U32] = "u32",       [GGUF_I32] = "i32",     [GGUF_F32] = "f32", [GGUF_BOOL] = "bool",
        [GGUF_STRING] = "string", [GGUF_ARRAY] = "array", [GGUF_U64] = "u64", [GGUF_I64] = "i64",
        [GGUF_F64] = "f64",
    };
    return names[type];
}
