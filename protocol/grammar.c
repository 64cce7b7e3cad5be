/* protocol/grammar.c - the tables of both dialects, and the strict reading of a request by them.
 *
 * A row says what a verb takes: how many bare fields, whether the first is a tag, and which keys.
 * What the values of keys may be is the business of who reads them (message_u64() and its like).
 * GRAMMAR.md says the same for people; a change there is a change here. A name that is not known is
 * answered with the nearest one that is. Verbs of the protocol that nobody has built yet stand in
 * the tables too, so that they are told apart from misspelt ones. Threads: read-only
 * tables, pure functions. Refuses: replies and events are not in the tables, their readers are
 * lenient.
 */
#include "protocol/message.h"

#include <string.h>

#include "protocol/excerpt.h"

#define KEYS_MAX       32
#define NAME_BYTES_MAX 31

enum key_kind { KEY_OPTIONAL, KEY_REQUIRED, KEY_REPEATABLE };

struct key_rule {
    const char *name;
    enum key_kind kind;
};

struct verb_rule {
    const char *name;
    const char *bare; /* how the bare fields are called in errors */
    size_t bare_min, bare_max;
    bool takes_tag, not_built;
    const char *either, * or ; /* keys of which at most one may stand; exactly one if one_of */
    bool one_of;
    struct key_rule keys[KEYS_MAX]; /* ends with a NULL name */
};

struct table {
    const struct verb_rule *rules;
    size_t n_rules;
};

static const struct verb_rule control_rules[] = {
    {.name = "PART",
     .bare = "<tag>",
     .bare_min = 1,
     .bare_max = 1,
     .takes_tag = true,
     .either = "ids",
     .or = "text",
     .one_of = true,
     .keys = {{.name = "role"}, {.name = "ids"}, {.name = "text"}}},
    {.name = "GEN",
     .bare = "<tag> <max_new>",
     .bare_min = 2,
     .bare_max = 2,
     .takes_tag = true,
     .either = "ids",
     .or = "text",
     .keys = {{.name = "temperature"},
              {.name = "top_p"},
              {.name = "top_k"},
              {.name = "min_p"},
              {.name = "seed"},
              {.name = "repetition_penalty"},
              {.name = "repeat_last_n"},
              {.name = "frequency_penalty"},
              {.name = "presence_penalty"},
              {.name = "logit_bias"},
              {.name = "logprobs"},
              {"stop", KEY_REPEATABLE},
              {.name = "ignore_eos"},
              {.name = "ids"},
              {.name = "text"}}},
    {.name = "SCORE",
     .bare = "<tag>",
     .bare_min = 1,
     .bare_max = 1,
     .takes_tag = true,
     .either = "ids",
     .or = "text",
     .keys = {{.name = "top"}, {.name = "ids"}, {.name = "text"}}},
    {.name = "STOP", .bare = "<tag>", .bare_min = 1, .bare_max = 1, .takes_tag = true},
    {.name = "VRAM",
     .bare = "[<reserve_mib>|-] [<dev>]",
     .bare_max = 2,
     .keys = {{.name = "for"}, {.name = "pid"}, {.name = "conn"}, {.name = "lease"}}},
    {.name = "UNLEASE", .bare = "<lease>", .bare_min = 1, .bare_max = 1},
    {.name = "LEASES"},
    {.name = "WATCH"},
    {.name = "STAT", .bare = "[<dev>]", .bare_max = 1},
    {.name = "LEDGER", .bare = "[<dev>]", .bare_max = 1},
    {.name = "PLAN"},
    {.name = "PING", .bare = "<token>", .bare_min = 1, .bare_max = 1},
    {.name = "QUIT"},
    {.name = "SHUTDOWN"},
    {.name = "RECYCLE", .not_built = true},
};

static const struct verb_rule stage_rules[] = {
    {.name = "LOAD",
     .keys = {{"model", KEY_REQUIRED},  {.name = "fingerprint"}, {.name = "device"},
              {.name = "stage"},        {.name = "stages"},      {.name = "layers"},
              {.name = "reserve_mib"},  {.name = "segment_mib"}, {.name = "context"},
              {.name = "sequences"},    {.name = "kv_tokens"},   {.name = "kv_tokens_max"},
              {.name = "chunk"},        {.name = "threads"},     {.name = "pin"},
              {.name = "share"},        {.name = "kernels"},     {.name = "kv"},
              {.name = "host_mib"},     {.name = "link"},        {.name = "trace"},
              {.name = "heat_file"},    {.name = "yield"},       {.name = "yield_quiet_s"},
              {.name = "miss_threads"}, {.name = "miss_share"},  {.name = "epoch"},
              {.name = "chunk_min"}}},
    {.name = "LINK",
     .keys = {{"epoch", KEY_REQUIRED},
              {.name = "in"},
              {.name = "out"},
              {.name = "back-in"},
              {.name = "back-out"},
              {.name = "host"},
              {.name = "key"}}},
    {.name = "GO"},
    {.name = "RELEASE"},
    {.name = "ROWS",
     .keys = {{"epoch", KEY_REQUIRED},
              {"step", KEY_REQUIRED},
              {"seq", KEY_REQUIRED},
              {"pos", KEY_REQUIRED},
              {"ids", KEY_REQUIRED},
              {.name = "want"},
              {.name = "temperature"},
              {.name = "top_p"},
              {.name = "top_k"},
              {.name = "min_p"},
              {.name = "seed"},
              {.name = "repetition_penalty"},
              {.name = "repeat_last_n"},
              {.name = "frequency_penalty"},
              {.name = "presence_penalty"},
              {.name = "prompt"},
              {.name = "logit_bias"},
              {.name = "logprobs"}}},
    {.name = "STEP",
     .keys = {{"epoch", KEY_REQUIRED},
              {"step", KEY_REQUIRED},
              {"rows", KEY_REQUIRED},
              {.name = "through"}}},
    {.name = "FORK", .bare = "<new> <old> <n>", .bare_min = 3, .bare_max = 3},
    {.name = "DROP", .bare = "<seq>", .bare_min = 1, .bare_max = 1},
    {.name = "CREDIT", .bare = "<blocks>", .bare_min = 1, .bare_max = 1},
    {.name = "CHUNK", .bare = "<rows>", .bare_min = 1, .bare_max = 1},
    {.name = "CANCEL", .keys = {{"epoch", KEY_REQUIRED}, {"step", KEY_REQUIRED}}},
    {.name = "VRAM", .bare = "[<reserve_mib>|-]", .bare_max = 1},
    {.name = "STAT"},
    {.name = "LEDGER"},
    {.name = "HOLDERS"},
    {.name = "PING", .bare = "<token>", .bare_min = 1, .bare_max = 1},
    {.name = "QUIT"},
};

static struct table table_of(enum dialect dialect)
{
    if (dialect == DIALECT_CONTROL)
        return (struct table){control_rules, sizeof control_rules / sizeof control_rules[0]};
    return (struct table){stage_rules, sizeof stage_rules / sizeof stage_rules[0]};
}

static const struct verb_rule *find_rule(enum dialect dialect, const char *verb)
{
    struct table table = table_of(dialect);

    for (size_t i = 0; i < table.n_rules; i++)
        if (strcmp(table.rules[i].name, verb) == 0)
            return &table.rules[i];
    return NULL;
}

static char folded(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edits from `given` to `known`; two neighbours swapped are one edit, upper and lower case are the
 * same. What `given` has beyond NAME_BYTES_MAX is left out: no known name is near it anyway. */
static size_t edits(const char *given, const char *known)
{
    size_t rows[3][NAME_BYTES_MAX + 1];
    size_t *before = rows[0], *above = rows[1], *here = rows[2];
    size_t n = strnlen(given, NAME_BYTES_MAX), n_known = strnlen(known, NAME_BYTES_MAX);

    for (size_t j = 0; j <= n_known; j++)
        above[j] = j;
    for (size_t i = 1; i <= n; i++) {
        here[0] = i;
        for (size_t j = 1; j <= n_known; j++) {
            char g = folded(given[i - 1]), k = folded(known[j - 1]);
            here[j] = least(above[j - 1] + (g != k), 1 + least(above[j], here[j - 1]));
            if (i > 1 && j > 1 && g == folded(known[j - 2]) && folded(given[i - 2]) == k)
                here[j] = least(here[j], before[j - 2] + 1);
        }
        size_t *oldest = before;
        before = above;
        above = here;
        here = oldest;
    }
    return above[n_known];
}

/* Ranks a known name: fewer edits are nearer, and a name that merely was not written to its end
 * ("temp") counts as one edit. */
static size_t distance(const char *given, const char *known)
{
    size_t n = strlen(given), n_edits = edits(given, known);

    for (size_t i = 0; i < n; i++)
        if (folded(given[i]) != folded(known[i]) || known[i] == '\0')
            return n_edits;
    return n >= 2 ? least(n_edits, 1) : n_edits;
}

static int refuse_verb(enum dialect dialect, const char *verb, struct error *err)
{
    struct table table = table_of(dialect);
    const char *nearest = NULL;
    size_t nearest_distance = 0;

    for (size_t i = 0; i < table.n_rules; i++) {
        size_t d = distance(verb, table.rules[i].name);
        if (nearest == NULL || d < nearest_distance) {
            nearest = table.rules[i].name;
            nearest_distance = d;
        }
    }
    return error_set(err, EBB_EUNKNOWN_VERB, "unknown verb \"%s\"; the nearest known one is %s",
                     excerpt_of_text(verb).text, nearest);
}

static int refuse_key(const struct verb_rule *rule, const char *key, struct error *err)
{
    const char *nearest = NULL;
    size_t nearest_distance = 0;

    for (const struct key_rule *k = rule->keys; k->name != NULL; k++) {
        size_t d = distance(key, k->name);
        if (nearest == NULL || d < nearest_distance) {
            nearest = k->name;
            nearest_distance = d;
        }
    }
    if (nearest == NULL)
        return error_set(err, EBB_EUNKNOWN_KEY, "%s: unknown key \"%s=\"; this verb takes no keys",
                         rule->name, excerpt_of_text(key).text);
    return error_set(err, EBB_EUNKNOWN_KEY,
                     "%s: unknown key \"%s=\"; the nearest known one is %s=", rule->name,
                     excerpt_of_text(key).text, nearest);
}

static int check_bare(const struct message *m, const struct verb_rule *rule, struct error *err)
{
    const char *wanted = rule->bare != NULL ? rule->bare : "no field";

    if (m->n_bare < rule->bare_min)
        return error_set(err, EBB_EINVAL, "%s wants %s, got %zu field%s without a key", rule->name,
                         wanted, m->n_bare, m->n_bare == 1 ? "" : "s");
    if (m->n_bare > rule->bare_max)
        return error_set(err, EBB_EINVAL, "%s wants %s and no more, got \"%s\" as field %zu",
                         rule->name, wanted, excerpt_of_text(m->fields[rule->bare_max].value).text,
                         rule->bare_max + 1);
    if (rule->takes_tag && !tag_is_valid(m->fields[0].value))
        return error_set(err, EBB_EINVAL,
                         "%s wants a tag of 1 to %d characters A-Z a-z 0-9 . _ : -, got \"%s\"",
                         rule->name, MESSAGE_TAG_MAX, excerpt_of_text(m->fields[0].value).text);
    return 0;
}

static int check_keys(const struct message *m, const struct verb_rule *rule, struct error *err)
{
    bool seen[KEYS_MAX] = {false};

    for (size_t i = m->n_bare; i < m->n_fields; i++) {
        const char *key = m->fields[i].key;
        size_t k = 0;
        while (rule->keys[k].name != NULL && strcmp(rule->keys[k].name, key) != 0)
            k++;
        if (rule->keys[k].name == NULL)
            return refuse_key(rule, key, err);
        if (seen[k] && rule->keys[k].kind != KEY_REPEATABLE)
            return error_set(err, EBB_EINVAL, "%s: %s= is given twice", rule->name, key);
        seen[k] = true;
    }
    for (const struct key_rule *k = rule->keys; k->name != NULL; k++)
        if (k->kind == KEY_REQUIRED && !seen[k - rule->keys])
            return error_set(err, EBB_EINVAL, "%s wants %s=, which is not given", rule->name,
                             k->name);
    return 0;
}

int message_check(const struct message *m, enum dialect dialect, struct error *err)
{
    const struct verb_rule *rule = find_rule(dialect, m->verb);
    int rc;

    if (*m->verb == '\0')
        return 0;
    if (rule == NULL)
        return refuse_verb(dialect, m->verb, err);
    if (rule->not_built)
        return error_set(err, EBB_EUNSUPPORTED, "%s is not supported by this version", rule->name);
    rc = check_bare(m, rule, err);
    if (rc == 0)
        rc = check_keys(m, rule, err);
    if (rc < 0 || rule->either == NULL)
        return rc;

    bool either = message_key(m, rule->either) != NULL, other = message_key(m, rule->or) != NULL;
    if (either && other)
        return error_set(err, EBB_EINVAL, "%s: %s= and %s= exclude each other", rule->name,
                         rule->either, rule->or);
    if (rule->one_of && !either && !other)
        return error_set(err, EBB_EINVAL, "%s wants %s= or %s=", rule->name, rule->either,
                         rule->or);
    return 0;
}

const char *message_tag(const struct message *m)
{
    const struct verb_rule *rule = find_rule(DIALECT_CONTROL, m->verb);
    const char *first = message_bare(m, 0);

    return rule != NULL && rule->takes_tag && first != NULL && tag_is_valid(first) ? first : "-";
}
