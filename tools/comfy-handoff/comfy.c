/* tools/comfy-handoff/comfy.c - ComfyUI's endpoints as calls, over libcurl and Jansson.
 *
 * Owns one easy handle, which keeps its connection. A body is collected up to a bound, then parsed; a broken one is the
 * server's error. What goes into an error's text is cut to one line of printable characters.
 */
#include "tools/comfy-handoff/comfy.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

#define BODY_BYTES_MAX ((size_t)64 << 20)
#define TIMEOUT_MS     10000L

struct body {
    char *bytes; /* owned */
    size_t n, capacity;
    bool failed;
};

static size_t body_take(char *data, size_t size, size_t n_items, void *user)
{
    struct body *b = user;
    size_t n = size * n_items;
    if (n > BODY_BYTES_MAX || b->n > BODY_BYTES_MAX - n) {
        b->failed = true;
        return 0;
    }
    if (b->n + n + 1 > b->capacity) {
        size_t capacity = 2 * (b->n + n + 1);
        char *bytes = realloc(b->bytes, capacity);
        if (bytes == NULL) {
            b->failed = true;
            return 0;
        }
        b->bytes = bytes;
        b->capacity = capacity;
    }
    memcpy(b->bytes + b->n, data, n);
    b->n += n;
    b->bytes[b->n] = '\0';
    return n;
}

static int stop_asked(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct comfy *comfy = user;
    (void)a, (void)b, (void)c, (void)d;
    return comfy->should_stop != NULL && comfy->should_stop();
}

int comfy_open(struct comfy *c, const char *url, bool (*should_stop)(void), struct error *err)
{
    size_t n = strlen(url);
    memset(c, 0, sizeof *c);
    while (n > 0 && url[n - 1] == '/')
        n--;
    if ((strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) || n < 9 ||
        n >= sizeof c->base)
        return error_set(err, EBB_EINVAL, "--url: wanted http://HOST:PORT, got '%.200s'", url);
    memcpy(c->base, url, n);
    c->should_stop = should_stop;
    c->timeout_ms = TIMEOUT_MS;
    c->curl = curl_easy_init();
    return c->curl != NULL ? 0 : error_set(err, EBB_ENOMEM, "out of memory for HTTP");
}

void comfy_close(struct comfy *c)
{
    if (c->curl != NULL)
        curl_easy_cleanup(c->curl);
    memset(c, 0, sizeof *c);
}

/* What a server says, as a piece of a line. */
static void text_copy(char *out, size_t capacity, const char *text)
{
    size_t n = 0;
    for (; text != NULL && text[n] != '\0' && n + 1 < capacity; n++)
        out[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7F ? ' ' : text[n];
    while (n > 0 && out[n - 1] == ' ')
        n--;
    out[n] = '\0';
}

static const char *string_of(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* The first node that is wrong: "node 3 (KSampler): Value not in list: …". Empty where there is none. */
static void node_errors_tell(json_t *errors, char *out, size_t capacity)
{
    const char *node;
    json_t *said;
    char text[COMFY_TEXT_BYTES * 2];
    out[0] = '\0';
    json_object_foreach(errors, node, said)
    {
        json_t *first = json_array_get(json_object_get(said, "errors"), 0);
        (void)snprintf(text, sizeof text, "node %.40s (%.60s): %.120s: %.120s", node,
                       string_of(said, "class_type"), string_of(first, "message"),
                       string_of(first, "details"));
        text_copy(out, capacity, text);
        return;
    }
}

/* Why a request was refused, of the answer's body. */
static int refused(const char *method, const char *path, long status, json_t *answer,
                   struct error *err)
{
    json_t *error = json_object_get(answer, "error");
    char nodes[COMFY_TEXT_BYTES], words[COMFY_TEXT_BYTES];
    node_errors_tell(json_object_get(answer, "node_errors"), nodes, sizeof nodes);
    text_copy(words, sizeof words,
              json_is_string(error) ? json_string_value(error) : string_of(error, "message"));
    return error_set(err, EBB_EPEER, "ComfyUI: %s %s: HTTP %ld%s%s%s%s", method, path, status,
                     words[0] != '\0' ? ": " : "", words, nodes[0] != '\0' ? "; " : "", nodes);
}

static CURLcode perform(struct comfy *c, const char *path, const char *data, struct body *body,
                        char why[static CURL_ERROR_SIZE])
{
    char url[sizeof c->base + 256];
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    CURLcode code;
    (void)snprintf(url, sizeof url, "%s%s", c->base, path);
    curl_easy_reset(c->curl);
    curl_easy_setopt(c->curl, CURLOPT_URL, url);
    curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, c->timeout_ms);
    curl_easy_setopt(c->curl, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, body_take);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, body);
    curl_easy_setopt(c->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c->curl, CURLOPT_XFERINFOFUNCTION, stop_asked);
    curl_easy_setopt(c->curl, CURLOPT_XFERINFODATA, c);
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c->curl, CURLOPT_USERAGENT, "ebbtide-comfy-handoff/" EBBTIDE_VERSION);
    if (data != NULL)
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, data);
    code = curl_easy_perform(c->curl);
    curl_slist_free_all(headers);
    return code;
}

/* One request. *answer (may be NULL) gets the body as JSON, a new reference, and then has to be an object. data NULL: GET. */
static int ask(struct comfy *c, const char *path, const char *data, json_t **answer,
               struct error *err)
{
    const char *method = data != NULL ? "POST" : "GET";
    char why[CURL_ERROR_SIZE] = "";
    struct body body = {0};
    json_t *said;
    long status = 0;
    CURLcode code = perform(c, path, data, &body, why);
    int rc = 0;
    if (code == CURLE_ABORTED_BY_CALLBACK)
        rc = error_set(err, EBB_ECANCEL, "stopped");
    else if (body.failed)
        rc = error_set(err, EBB_EPEER, "ComfyUI: %s %s: the answer is too long", method, path);
    else if (code != CURLE_OK)
        rc = error_set(err, EBB_EIO, "ComfyUI at %s: %s %s: %s", c->base, method, path,
                       why[0] != '\0' ? why : curl_easy_strerror(code));
    if (rc != 0) {
        free(body.bytes);
        return rc;
    }
    (void)curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    said = body.n > 0 ? json_loadb(body.bytes, body.n, 0, NULL) : NULL;
    free(body.bytes);
    if (status < 200 || status > 299)
        rc = refused(method, path, status, said, err);
    else if (answer != NULL && !json_is_object(said))
        rc =
            error_set(err, EBB_EPEER, "ComfyUI: %s %s: the answer is no JSON object", method, path);
    if (rc == 0 && answer != NULL)
        *answer = said;
    else
        json_decref(said);
    return rc;
}

static int64_t bytes_of(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    double number = json_is_number(value) ? json_number_value(value) : -1;
    return number >= 0 && number < 9e18 ? (int64_t)number : -1;
}

int comfy_memory(struct comfy *c, struct comfy_memory *m, struct error *err)
{
    json_t *answer, *device = NULL, *each;
    size_t i;
    int code = ask(c, "/system_stats", NULL, &answer, err);
    if (code != 0)
        return code;
    json_array_foreach(json_object_get(answer, "devices"), i, each)
    {
        if (device == NULL && bytes_of(each, "vram_total") > 0)
            device = each;
    }
    memset(m, 0, sizeof *m);
    text_copy(m->name, sizeof m->name, string_of(device, "name"));
    text_copy(m->uuid, sizeof m->uuid, string_of(device, "uuid"));
    m->index = bytes_of(device, "index");
    m->total = bytes_of(device, "vram_total");
    m->free = bytes_of(device, "vram_free");
    m->torch_total = bytes_of(device, "torch_vram_total");
    m->torch_free = bytes_of(device, "torch_vram_free");
    if (device == NULL || m->free < 0)
        code = error_set(err, EBB_EPEER, "ComfyUI: GET /system_stats names no card with vram_free");
    json_decref(answer);
    return code;
}

unsigned comfy_port_here(const struct comfy *c)
{
    char *there = NULL, *here = NULL;
    long port = 0;
    if (curl_easy_getinfo(c->curl, CURLINFO_PRIMARY_IP, &there) != CURLE_OK ||
        curl_easy_getinfo(c->curl, CURLINFO_LOCAL_IP, &here) != CURLE_OK ||
        curl_easy_getinfo(c->curl, CURLINFO_PRIMARY_PORT, &port) != CURLE_OK)
        return 0;
    bool is_here = there != NULL && here != NULL && there[0] != '\0' && strcmp(there, here) == 0;
    return is_here && port > 0 && port < 65536 ? (unsigned)port : 0;
}

int64_t comfy_driver_free(const struct comfy_memory *m)
{
    int64_t kept = m->torch_free > 0 && m->torch_free < m->free ? m->torch_free : 0;
    return m->free - kept;
}

static bool id_is_valid(const char *id)
{
    size_t n = strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.");
    return n > 0 && n < COMFY_ID_BYTES && id[n] == '\0';
}

int comfy_queue(struct comfy *c, json_t *workflow, char id[static COMFY_ID_BYTES],
                struct error *err)
{
    json_t *request = json_pack("{s:O, s:s}", "prompt", workflow, "client_id", "ebbtide");
    char *data = request != NULL ? json_dumps(request, JSON_COMPACT) : NULL;
    char nodes[COMFY_TEXT_BYTES];
    json_t *answer = NULL;
    bool (*should_stop)(void) = c->should_stop;
    int code;
    id[0] = '\0';
    c->should_stop = NULL; /* a job whose id was not read could not be cancelled */
    code = data != NULL ? ask(c, "/prompt", data, &answer, err)
                        : error_set(err, EBB_ENOMEM, "out of memory for the workflow");
    c->should_stop = should_stop;
    free(data);
    json_decref(request);
    if (code != 0)
        return code;
    if (id_is_valid(string_of(answer, "prompt_id")))
        (void)snprintf(id, COMFY_ID_BYTES, "%s", string_of(answer, "prompt_id"));
    node_errors_tell(json_object_get(answer, "node_errors"), nodes, sizeof nodes);
    if (id[0] == '\0') {
        code = error_set(err, EBB_EPEER, "ComfyUI: POST /prompt: the answer has no prompt_id");
    } else if (nodes[0] != '\0') {
        code = error_set(err, EBB_EPEER, "ComfyUI refused a part of the workflow: %s", nodes);
        (void)comfy_cancel(c, id, NULL);
        id[0] = '\0';
    }
    json_decref(answer);
    return code;
}

/* Of a history's status: what went wrong. */
static void failure_tell(json_t *status, char why[static COMFY_TEXT_BYTES])
{
    json_t *message;
    size_t i;
    char text[2 * COMFY_TEXT_BYTES] = "it ended with an error";
    json_array_foreach(json_object_get(status, "messages"), i, message)
    {
        const char *kind = json_string_value(json_array_get(message, 0));
        json_t *said = json_array_get(message, 1);
        if (kind != NULL && strcmp(kind, "execution_interrupted") == 0)
            (void)snprintf(text, sizeof text, "it was interrupted");
        if (kind != NULL && strcmp(kind, "execution_error") == 0)
            (void)snprintf(text, sizeof text, "node %.40s (%.60s): %.300s",
                           string_of(said, "node_id"), string_of(said, "node_type"),
                           string_of(said, "exception_message"));
    }
    text_copy(why, COMFY_TEXT_BYTES, text);
}

/* *found: the history has it. */
static int history_ask(struct comfy *c, const char *id, struct comfy_job *job, bool *found,
                       struct error *err)
{
    char path[COMFY_ID_BYTES + 16];
    json_t *answer, *entry, *status;
    int code;
    (void)snprintf(path, sizeof path, "/history/%s", id);
    *found = false;
    code = ask(c, path, NULL, &answer, err);
    if (code != 0)
        return code;
    entry = json_object_get(answer, id);
    if (json_is_object(entry)) {
        status = json_object_get(entry, "status");
        *found = true;
        job->state = COMFY_DONE;
        if (strcmp(string_of(status, "status_str"), "error") == 0 ||
            json_is_false(json_object_get(status, "completed"))) {
            job->state = COMFY_FAILED;
            failure_tell(status, job->why);
        }
    }
    json_decref(answer);
    return 0;
}

/* [number, id, prompt, …] */
static bool entry_is(json_t *entry, const char *id)
{
    const char *of = json_string_value(json_array_get(entry, 1));
    return of != NULL && strcmp(of, id) == 0;
}

static int queue_ask(struct comfy *c, const char *id, struct comfy_job *job, struct error *err)
{
    json_t *answer, *entry, *pending, *mine = NULL;
    size_t i;
    int code = ask(c, "/queue", NULL, &answer, err);
    if (code != 0)
        return code;
    job->state = COMFY_UNKNOWN;
    json_array_foreach(json_object_get(answer, "queue_running"), i, entry)
    {
        if (entry_is(entry, id))
            job->state = COMFY_RUNNING;
        else
            job->n_ahead++;
    }
    pending = json_object_get(answer, "queue_pending");
    json_array_foreach(pending, i, entry)
    {
        if (entry_is(entry, id))
            mine = json_array_get(entry, 0);
    }
    if (mine != NULL)
        job->state = COMFY_PENDING;
    json_array_foreach(pending, i, entry)
    {
        json_t *number = json_array_get(entry, 0);
        job->n_ahead += mine != NULL && json_number_value(number) < json_number_value(mine);
    }
    json_decref(answer);
    return 0;
}

int comfy_job(struct comfy *c, const char *id, struct comfy_job *job, struct error *err)
{
    bool found;
    int code;
    memset(job, 0, sizeof *job);
    code = history_ask(c, id, job, &found, err);
    if (code == 0 && !found)
        code = queue_ask(c, id, job, err);
    if (code == 0 && !found && job->state == COMFY_UNKNOWN) /* it may have ended in between */
        code = history_ask(c, id, job, &found, err);
    return code;
}

int comfy_cancel(struct comfy *c, const char *id, struct error *err)
{
    struct comfy_job job = {0};
    char data[COMFY_ID_BYTES + 32];
    int code = queue_ask(c, id, &job, err);
    if (code != 0 || job.state == COMFY_UNKNOWN)
        return code;
    (void)snprintf(data, sizeof data, "{\"delete\":[\"%s\"]}", id);
    code = ask(c, "/queue", data, NULL, err);
    (void)snprintf(data, sizeof data, "{\"prompt_id\":\"%s\"}", id);
    if (code == 0 && job.state == COMFY_RUNNING)
        code = ask(c, "/interrupt", data, NULL, err);
    return code;
}

int comfy_free(struct comfy *c, struct error *err)
{
    return ask(c, "/free", "{\"unload_models\":true,\"free_memory\":true}", NULL, err);
}
