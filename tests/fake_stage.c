/* tests/fake_stage.c - a stage without a model: speaks the stage dialect and samples by a fixed
 * rule.
 *
 * The token after a position is a hash of all tokens up to there, so whatever the coordinator does
 * with batches, chunks, forks, replays and run-ahead, a sequence's tokens are the same, and a wrong
 * history shows at once. Every stage of a run computes for itself; links are only talked about. KV
 * is counted as a real stage counts it (blocks by reference, copy on write): a step that lacks a
 * block is refused. Options make it misbehave; --only limits that to one card, --once to the first
 * time (it makes the file).
 *
 *   --card NAME --only NAME --once FILE --die-after N --garbage-after N --mute-after N (steps)
 *   --slow-us N --refuse-loads N
 *   --total-mib N --kv-blocks N --block-tokens N --end-at POS --end-id ID --log FILE (every line
 *   that came)
 */
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/channel.h"
#include "protocol/vram.h"

#define SEQUENCES_MAX 64
#define POSITIONS_MAX 4096
#define BLOCKS_MAX    8192
#define RUNS_MAX      64
#define ROWS_MAX      1024
#define SAMPLED_MAX   4096

static struct options {
    const char *card, *only, *once, *log;
    uint64_t die_after, garbage_after, mute_after, slow_us, refuse_loads, total_mib, kv_blocks,
        block_tokens, end_at, end_id;
} opt = {.card = "cpu:0", .total_mib = 1000, .kv_blocks = 512, .block_tokens = 16};

struct sequence {
    bool live;
    uint32_t length, n_blocks;
    uint64_t hash[POSITIONS_MAX]; /* of the tokens up to each position */
    uint32_t blocks[POSITIONS_MAX];
};

struct run {
    uint32_t seq, pos, row_first, n_rows, top;
    bool wants_token;
};

static struct {
    struct channel c;
    char line[LINE_BYTES_MAX], input[LINE_BYTES_MAX];
    struct message m;
    uint64_t device, stage, n_stages, epoch, context, chunk, reserve, n_steps, n_refused, layer_a,
        layer_b;
    bool loaded, is_muted;
    struct sequence seqs[SEQUENCES_MAX];
    uint16_t users[BLOCKS_MAX];
    uint32_t n_free;
    struct run runs[RUNS_MAX];
    size_t n_runs, n_rows;
    bool refused;
    char why[200];
    struct {
        uint64_t step;
        uint32_t row;
        int32_t id;
    } sampled[SAMPLED_MAX];
    size_t n_sampled;
    int fd_log;
} s;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list args;
    if (s.is_muted)
        return;
    va_start(args, format);
    int n = vsnprintf(s.line, sizeof s.line - 1, format, args);
    va_end(args);
    s.line[n] = '\n';
    if (channel_send(&s.c, s.line, (size_t)n + 1) != 0)
        exit(1);
}

static uint64_t number(const char *key, uint64_t otherwise)
{
    (void)message_u64(&s.m, key, 0, UINT64_MAX, &otherwise, NULL);
    return otherwise;
}

static uint64_t bare(size_t i)
{
    uint64_t v = 0;
    (void)message_bare_u64(&s.m, i, "field", 0, UINT64_MAX, &v, NULL);
    return v;
}

/* Now is the time to misbehave: N steps are done, this is the card, and it did not happen
 * before. */
static bool is_time(uint64_t after)
{
    if (after == 0 || s.n_steps < after || (opt.only != NULL && strcmp(opt.only, opt.card) != 0))
        return false;
    if (opt.once == NULL)
        return true;
    int fd = open(opt.once, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        (void)close(fd);
    return fd >= 0;
}

static uint64_t mix(uint64_t h, uint64_t token)
{
    h = (h ^ (token + 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
    return h ^ (h >> 29);
}

static int32_t token_after(const struct sequence *q, uint32_t pos)
{
    if (opt.end_at > 0 && pos + 1 >= opt.end_at)
        return (int32_t)opt.end_id;
    return (int32_t)(300 + q->hash[pos] % 1500);
}

static bool block_take(uint32_t *block)
{
    for (uint32_t i = 0; i < opt.kv_blocks && s.n_free > 0; i++)
        if (s.users[i] == 0) {
            s.users[i] = 1;
            s.n_free--;
            *block = i;
            return true;
        }
    return false;
}

static void block_leave(uint32_t block)
{
    if (--s.users[block] == 0)
        s.n_free++;
}

static void sequence_cut(struct sequence *q, uint32_t length)
{
    uint32_t keep = (uint32_t)((length + opt.block_tokens - 1) / opt.block_tokens);
    while (q->n_blocks > keep)
        block_leave(q->blocks[--q->n_blocks]);
    q->length = length;
}

static bool sequence_extend(struct sequence *q, uint32_t pos, uint32_t n)
{
    sequence_cut(q, pos);
    for (uint32_t p = pos; p < pos + n; p++) {
        uint32_t b = (uint32_t)(p / opt.block_tokens), fresh;
        if (b < q->n_blocks && s.users[q->blocks[b]] == 1)
            continue;
        if (!block_take(&fresh))
            return false;
        if (b < q->n_blocks) /* shared: written into a copy */
            block_leave(q->blocks[b]);
        else
            q->n_blocks++;
        q->blocks[b] = fresh;
    }
    q->length = pos + n;
    return true;
}

static void forget(void)
{
    for (size_t i = 0; i < SEQUENCES_MAX; i++) {
        sequence_cut(&s.seqs[i], 0);
        s.seqs[i].live = false;
    }
    s.n_runs = s.n_rows = s.n_sampled = 0;
}

static void take_load(void)
{
    uint32_t a = 0, b = 0;
    if (s.n_refused < opt.refuse_loads && (opt.only == NULL || strcmp(opt.only, opt.card) == 0)) {
        s.n_refused++;
        say("ERR - out-of-memory it does not fit: try %" PRIu64, s.n_refused);
        return;
    }
    (void)message_range(&s.m, "layers", &a, &b, NULL);
    s.device = number("device", 0);
    s.stage = number("stage", 0);
    s.n_stages = number("stages", 1);
    s.epoch = number("epoch", 0);
    s.context = number("context", 2048);
    s.chunk = number("chunk", 64);
    s.reserve = number("reserve_mib", 0);
    s.layer_a = a;
    s.layer_b = b;
    s.n_free = (uint32_t)opt.kv_blocks;
    say("HELD device=%" PRIu64 " stage=%" PRIu64
        " layers=%u-%u weights=1 kv=2 cache=%u workspace=3 stream=0 link=0 blas=0 "
        "context=0 free=%u total=%u slots=10 slots_full=20 kv_blocks=%" PRIu64
        " block_tokens=%" PRIu64,
        s.device, s.stage, a, b, 64u << 20, 100u << 20, 900u << 20, opt.kv_blocks,
        opt.block_tokens);
}

static void take_link(void)
{
    uint64_t epoch = number("epoch", 0);
    static const char *const ways[] = {"in", "back-in", "out", "back-out"};
    if (epoch > s.epoch)
        forget();
    s.epoch = epoch;
    for (size_t i = 0; i < 4; i++)
        if (message_key(&s.m, ways[i]) != NULL) {
            if (i < 2)
                say("LINKED epoch=%" PRIu64 " %s=fake%%3D%d key=00ff", epoch, ways[i],
                    (int)getpid());
            else
                say("LINKED epoch=%" PRIu64 " %s=ok", epoch, ways[i]);
        }
}

static void refuse(const char *why)
{
    s.refused = true;
    (void)snprintf(s.why, sizeof s.why, "%s", why);
}

static bool sampled_find(uint64_t step, uint32_t row, int32_t *id)
{
    for (size_t i = 0; i < s.n_sampled && i < SAMPLED_MAX; i++)
        if (s.sampled[i].step == step && s.sampled[i].row == row) {
            *id = s.sampled[i].id;
            return true;
        }
    return false;
}

static bool next_token(const char **text, int32_t *id)
{
    if (**text != '@')
        return ids_next(text, INT32_MAX, id, NULL) > 0;
    char *end;
    uint64_t step = strtoull(*text + 1, &end, 10);
    uint32_t row = *end == '.' ? (uint32_t)strtoul(end + 1, &end, 10) : 0;
    *text = *end == ',' ? end + 1 : end;
    if (!sampled_find(step, row, id))
        refuse("a reference to a token that was not sampled");
    return true;
}

static void take_rows(void)
{
    uint64_t seq = number("seq", SEQUENCES_MAX), pos = number("pos", 0);
    const char *ids = message_key(&s.m, "ids"), *want = message_key(&s.m, "want");
    int32_t id;
    if (number("epoch", 0) != s.epoch)
        return;
    if (seq >= SEQUENCES_MAX || ids == NULL || s.n_runs == RUNS_MAX) {
        refuse("a bad ROWS");
        return;
    }
    struct sequence *q = &s.seqs[seq];
    if (pos > (q->live ? q->length : 0)) {
        refuse("a position beyond the sequence's length");
        return;
    }
    struct run *last = s.n_runs > 0 ? &s.runs[s.n_runs - 1] : NULL;
    bool goes_on = last != NULL && last->seq == seq && last->pos + last->n_rows == pos;
    struct run *r = goes_on ? last : &s.runs[s.n_runs++];
    if (!goes_on)
        *r = (struct run){
            .seq = (uint32_t)seq, .pos = (uint32_t)pos, .row_first = (uint32_t)s.n_rows};
    r->wants_token = want != NULL && strcmp(want, "last") == 0;
    r->top =
        want != NULL && strncmp(want, "top:", 4) == 0 ? (uint32_t)strtoul(want + 4, NULL, 10) : 0;
    q->live = true;
    uint32_t n = 0;
    uint64_t h = pos > 0 ? q->hash[pos - 1] : 0;
    while (pos + n < POSITIONS_MAX && next_token(&ids, &id))
        q->hash[pos + n++] = h = mix(h, (uint64_t)id);
    r->n_rows += n;
    s.n_rows += n;
    if (pos + n > s.context)
        refuse("beyond the context");
    else if (!sequence_extend(q, (uint32_t)pos, n))
        refuse("no KV block is free");
}

static void sample(struct run *r, uint64_t step, char *rows, char *ids, size_t capacity)
{
    uint32_t row = r->row_first + r->n_rows - 1;
    int32_t id = token_after(&s.seqs[r->seq], r->pos + r->n_rows - 1);
    size_t at = s.n_sampled++ % SAMPLED_MAX, n_rows = strlen(rows), n_ids = strlen(ids);
    s.sampled[at].step = step;
    s.sampled[at].row = row;
    s.sampled[at].id = id;
    (void)snprintf(rows + n_rows, capacity - n_rows, "%s%u", n_rows > 0 ? "," : "", row);
    (void)snprintf(ids + n_ids, capacity - n_ids, "%s%d", n_ids > 0 ? "," : "", id);
}

static void say_logits(const struct run *r, uint64_t step)
{
    for (uint32_t i = 0; i < r->n_rows && r->top > 0; i++) {
        char top[2048] = "";
        int32_t id = token_after(&s.seqs[r->seq], r->pos + i);
        for (uint32_t k = 0; k < r->top; k++)
            (void)snprintf(top + strlen(top), sizeof top - strlen(top), "%s%d:%.2f",
                           k > 0 ? "," : "", id + (int32_t)k, 9.5 - k);
        say("LOGITS epoch=%" PRIu64 " step=%" PRIu64 " row=%u top=%s", s.epoch, step,
            r->row_first + i, top);
    }
}

static void run_step(uint64_t step)
{
    char rows[4096] = "", ids[4096] = "", hits[2048] = "", lookups[2048] = "";
    bool is_last = s.stage + 1 == s.n_stages;
    for (size_t i = 0; i < s.n_runs; i++) {
        struct run *r = &s.runs[i];
        if (is_last)
            say_logits(r, step);
        if (r->wants_token)
            sample(r, step, rows, ids, sizeof rows);
        (void)snprintf(hits + strlen(hits), sizeof hits - strlen(hits), "%s%u", i > 0 ? "," : "",
                       r->n_rows);
        (void)snprintf(lookups + strlen(lookups), sizeof lookups - strlen(lookups), "%s%u",
                       i > 0 ? "," : "", 2 * r->n_rows);
    }
    if (is_last && rows[0] != '\0')
        say("TOK epoch=%" PRIu64 " step=%" PRIu64 " rows=%s ids=%s", s.epoch, step, rows, ids);
    else if (is_last)
        say("TOK epoch=%" PRIu64 " step=%" PRIu64, s.epoch, step);
    say("RAN epoch=%" PRIu64 " step=%" PRIu64 " us=1 hits=%s lookups=%s kv_blocks_free=%u", s.epoch,
        step, hits, lookups, s.n_free);
}

static void take_step(void)
{
    uint64_t step = number("step", 0);
    if (number("epoch", 0) != s.epoch)
        return;
    if (number("rows", 0) != s.n_rows || s.n_rows > s.chunk)
        refuse("rows do not add up, or are more than a chunk");
    if (opt.slow_us > 0)
        (void)usleep((useconds_t)opt.slow_us);
    s.n_steps++;
    if (is_time(opt.die_after)) {
        (void)fprintf(stderr, "fake-stage: dying as told\n");
        _exit(7);
    }
    if (is_time(opt.garbage_after))
        say("\x01garbage %d", 7);
    if (!s.is_muted && is_time(opt.mute_after))
        s.is_muted = true;
    if (s.refused)
        say("ERR step:%" PRIu64 ".%" PRIu64 " busy %s", s.epoch, step, s.why);
    else
        run_step(step);
    s.refused = false;
    s.n_runs = s.n_rows = 0;
}

static void take_fork(void)
{
    uint64_t new = bare(0), old = bare(1), n = bare(2);
    if (new >= SEQUENCES_MAX || old >= SEQUENCES_MAX || !s.seqs[old].live || s.seqs[new].live ||
        n > s.seqs[old].length) {
        say("ERR fork:%" PRIu64 " not-found no such fork", new);
        return;
    }
    struct sequence *a = &s.seqs[new], *b = &s.seqs[old];
    memcpy(a->hash, b->hash, sizeof a->hash);
    a->live = true;
    a->length = (uint32_t)n;
    a->n_blocks = (uint32_t)((n + opt.block_tokens - 1) / opt.block_tokens);
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        a->blocks[i] = b->blocks[i];
        s.users[a->blocks[i]]++;
    }
    say("FORKED %" PRIu64 " kv_blocks_free=%u", new, s.n_free);
}

static void take_drop(void)
{
    uint64_t seq = bare(0);
    if (seq >= SEQUENCES_MAX || !s.seqs[seq].live) {
        say("ERR drop:%" PRIu64 " not-found no such sequence", seq);
        return;
    }
    sequence_cut(&s.seqs[seq], 0);
    s.seqs[seq].live = false;
    say("DROPPED %" PRIu64 " kv_blocks_free=%u", seq, s.n_free);
}

static void take_chunk(void)
{
    say("CHUNKED %" PRIu64 " workspace_rows=%" PRIu64 " prompt_chunk=%" PRIu64, bare(0), s.chunk,
        s.chunk);
}

static void take_vram(void)
{
    uint64_t before = s.reserve;
    s.reserve = bare(0);
    struct vram_receipt r = {.device = (uint32_t)s.device,
                             .reserve_mib = s.reserve,
                             .freed_mib = (int64_t)(s.reserve - before),
                             .before_mib = before,
                             .free_mib = s.reserve,
                             .reason = "ok"};
    int n = vram_receipt_write(&r, s.line, sizeof s.line);
    if (opt.slow_us > 0)
        (void)usleep((useconds_t)opt.slow_us);
    if (n > 0)
        (void)channel_send(&s.c, s.line, (size_t)n);
    say("VRAM-DONE cards=1 freed_mib=%" PRId64 " shortfall_mib=0", r.freed_mib);
}

static void take_stat(void)
{
    uint32_t n_live = 0;
    for (size_t i = 0; i < SEQUENCES_MAX; i++)
        n_live += s.seqs[i].live;
    say("STAT device=%" PRIu64 " kind=cpu name=fake state=ready layers=%" PRIu64 "-%" PRIu64
        " reserve_mib=%" PRIu64 " kv_blocks=%" PRIu64
        " kv_blocks_free=%u sequences=%u steps=%" PRIu64 " pid=%d",
        s.device, s.layer_a, s.layer_b, s.reserve, opt.kv_blocks, s.n_free, n_live, s.n_steps,
        (int)getpid());
    say("STAT-DONE");
}

static void take_line(char *line, size_t n_bytes)
{
    struct error err = {0};
    if (s.fd_log >= 0) {
        (void)snprintf(s.input, sizeof s.input, "%s\n", line);
        ssize_t n = write(s.fd_log, s.input, strlen(s.input));
        (void)n;
    }
    int code = message_parse(&s.m, line, n_bytes, &err);
    if (code == 0 && s.m.verb[0] != '\0')
        code = message_check(&s.m, DIALECT_STAGE, &err);
    if (code != 0) {
        say("ERR - %s %s", error_code_name(code), err.text);
        return;
    }
    const struct {
        const char *verb;
        void (*take)(void);
    } table[] = {{"LOAD", take_load}, {"LINK", take_link}, {"ROWS", take_rows},
                 {"STEP", take_step}, {"FORK", take_fork}, {"DROP", take_drop},
                 {"VRAM", take_vram}, {"STAT", take_stat}, {"CHUNK", take_chunk}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].verb, s.m.verb) == 0)
            table[i].take();
    if (strcmp(s.m.verb, "GO") == 0)
        say("LOADED us=1");
    else if (strcmp(s.m.verb, "RELEASE") == 0)
        say("RELEASED");
    else if (strcmp(s.m.verb, "LEDGER") == 0) {
        say("LEDGER device=%" PRIu64 " total=900 free=100 reserve=%" PRIu64, s.device, s.reserve);
        say("LEDGER-DONE");
    } else if (strcmp(s.m.verb, "PING") == 0)
        say("PONG %s", message_bare(&s.m, 0));
    else if (strcmp(s.m.verb, "QUIT") == 0)
        exit(0);
}

static void options_read(int argc, char **argv)
{
    const struct {
        const char *name;
        const char **text;
        uint64_t *value;
    } table[] = {{"--card", &opt.card, NULL},
                 {"--only", &opt.only, NULL},
                 {"--once", &opt.once, NULL},
                 {"--log", &opt.log, NULL},
                 {"--die-after", NULL, &opt.die_after},
                 {"--garbage-after", NULL, &opt.garbage_after},
                 {"--mute-after", NULL, &opt.mute_after},
                 {"--slow-us", NULL, &opt.slow_us},
                 {"--refuse-loads", NULL, &opt.refuse_loads},
                 {"--total-mib", NULL, &opt.total_mib},
                 {"--kv-blocks", NULL, &opt.kv_blocks},
                 {"--block-tokens", NULL, &opt.block_tokens},
                 {"--end-at", NULL, &opt.end_at},
                 {"--end-id", NULL, &opt.end_id}};
    for (int i = 1; i + 1 < argc; i += 2)
        for (size_t j = 0; j < sizeof table / sizeof table[0]; j++)
            if (strcmp(argv[i], table[j].name) == 0) {
                if (table[j].text != NULL)
                    *table[j].text = argv[i + 1];
                else
                    *table[j].value = strtoull(argv[i + 1], NULL, 10);
            }
}

int main(int argc, char **argv)
{
    struct error err = {0};
    char *line;
    size_t n_bytes;
    options_read(argc, argv);
    s.fd_log =
        opt.log != NULL ? open(opt.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (channel_open(&s.c, 0, 1, true, 0, &err) != 0)
        return 1;
    say("HELLO ebbtide-stage protocol=1 version=" EBBTIDE_VERSION
        " device=0 kind=cpu name=fake%%20card uuid=fake free_mib=%" PRIu64 " total_mib=%" PRIu64,
        opt.total_mib, opt.total_mib);
    while (!s.c.at_end) {
        struct pollfd fds[2] = {{.fd = 0, .events = POLLIN},
                                {.fd = channel_wants_write(&s.c) ? 1 : -1, .events = POLLOUT}};
        (void)poll(fds, 2, -1);
        (void)channel_read(&s.c, &err);
        while (channel_next(&s.c, &line, &n_bytes) == LINE_READY)
            take_line(line, n_bytes);
        if (channel_flush(&s.c) != 0)
            return 1;
    }
    return 0;
}
