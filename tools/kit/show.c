/* tools/kit/show.c - a reply as an aligned table, or as JSON.
 *
 * Both show what the engine said and compute nothing, save for units. A key that is not there is a dash in the table and
 * absent in JSON.
 */
#include "tools/kit/kit.h"

#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#define CELL_BYTES_MAX 128

static void cell_write(const struct kit_reply *r, size_t row, const struct kit_column *column,
                       char *cell)
{
    const struct message *m = &r->messages[row];
    const char *value = column->key != NULL ? message_key(m, column->key) : r->places[row];
    size_t n_bytes = 0;
    uint64_t number;
    if (value == NULL) {
        (void)snprintf(cell, CELL_BYTES_MAX, "-");
    } else if (column->key == NULL) {
        (void)snprintf(cell, CELL_BYTES_MAX, "%s", value);
    } else if (column->is_text) {
        if (message_text(m, column->key, cell, CELL_BYTES_MAX - 1, &n_bytes, NULL) != 0)
            n_bytes = (size_t)snprintf(cell, CELL_BYTES_MAX, "?");
        cell[n_bytes] = '\0';
    } else if (column->unit > 0 && parse_u64(value, 0, UINT64_MAX, &number) == 0) {
        (void)snprintf(cell, CELL_BYTES_MAX, "%.1f", (double)number / (double)column->unit);
    } else {
        (void)snprintf(cell, CELL_BYTES_MAX, "%s", value);
    }
    for (char *c = cell; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            *c = '?';
}

/* Columns a terminal shows for UTF-8 text of plain width. */
static size_t text_width(const char *text)
{
    size_t n = 0;
    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static void cell_print(FILE *out, const char *cell, size_t width, bool left, bool last)
{
    int gap = (int)(width - text_width(cell));
    if (left)
        fprintf(out, "%s%*s", cell, last ? 0 : gap, "");
    else
        fprintf(out, "%*s%s", gap, "", cell);
    fputs(last ? "\n" : "  ", out);
}

void kit_table_print(FILE *out, const struct kit_reply *r, const struct kit_column *columns,
                     size_t n_columns)
{
    size_t widths[n_columns];
    char cell[CELL_BYTES_MAX];
    for (size_t k = 0; k < n_columns; k++) {
        widths[k] = text_width(columns[k].title);
        for (size_t i = 0; i < r->n_lines; i++) {
            cell_write(r, i, &columns[k], cell);
            widths[k] = text_width(cell) > widths[k] ? text_width(cell) : widths[k];
        }
    }
    for (size_t k = 0; k < n_columns; k++)
        cell_print(out, columns[k].title, widths[k], columns[k].is_text, k + 1 == n_columns);
    for (size_t i = 0; i < r->n_lines; i++) {
        for (size_t k = 0; k < n_columns; k++) {
            cell_write(r, i, &columns[k], cell);
            cell_print(out, cell, widths[k], columns[k].is_text, k + 1 == n_columns);
        }
    }
}

/* "1000,998" as an array. */
static json_t *json_list(const char *text)
{
    json_t *list = json_array();
    char *end;
    while (list != NULL && *text != '\0') {
        (void)json_array_append_new(list, json_integer(strtoll(text, &end, 10)));
        text = end + (*end == ',');
        if (*end != ',' && *end != '\0')
            break;
    }
    return list;
}

static json_t *json_value(const struct message *m, const struct message_field *field)
{
    static const char *const texts[] = {"kind",   "name", "state", "layers",
                                        "reason", "card", "uuid",  "lease"};
    char text[1024], *end;
    double real;
    size_t n_bytes = 0;
    bool is_text = field->value[0] == '\0';
    if (strcmp(field->key, "heat_layers") == 0)
        return json_list(field->value);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        is_text = is_text || strcmp(field->key, texts[i]) == 0;
    errno = 0;
    long long number = strtoll(field->value, &end, 10);
    if (!is_text && *end == '\0' && errno == 0)
        return json_integer(number);
    if (!is_text && message_f64(m, field->key, -DBL_MAX, DBL_MAX, &real, NULL) == 0)
        return json_real(real);
    if (message_text(m, field->key, text, sizeof text, &n_bytes, NULL) == 0) {
        json_t *value = json_stringn(text, n_bytes);
        if (value != NULL)
            return value;
    }
    return json_string(field->value); /* no UTF-8: as it stands in the line */
}

static int json_add(json_t *object, const struct message *m)
{
    int code = 0;
    for (size_t i = m->n_bare; i < m->n_fields && code == 0; i++)
        code = json_object_set_new(object, m->fields[i].key, json_value(m, &m->fields[i]));
    return code;
}

/* NULL: out of memory. */
static json_t *json_row(const struct kit_reply *r, size_t i)
{
    json_t *row = json_object();
    int code = json_add(row, &r->messages[i]);
    if (code == 0 && r->places[i] != NULL)
        code = json_object_set_new(row, "place", json_string(r->places[i]));
    if (code == 0)
        return row;
    json_decref(row);
    return NULL;
}

int kit_json_print(FILE *out, const struct kit_reply *r, const char *rows, struct error *err)
{
    json_t *document = json_object(), *list = json_array();
    char *done = strdup(r->done);
    struct message m;
    int code = json_object_set_new(document, rows, list);
    for (size_t i = 0; i < r->n_lines && code == 0; i++)
        code = json_array_append_new(list, json_row(r, i));
    if (code == 0 && done != NULL && message_parse(&m, done, strlen(done), NULL) == 0)
        code = json_add(document, &m);
    if (code == 0)
        code = json_dumpf(document, out, JSON_COMPACT);
    json_decref(document);
    free(done);
    fputc('\n', out);
    return code == 0 ? 0 : error_set(err, EBB_ENOMEM, "the answer could not be written as JSON");
}
