/* runtime/model/pretokenizer_table.h - the patterns of the pre-tokenisers in use; for
 * pretokenizer.c alone.
 *
 * They are the published ones of the models (their tokenizer.json, or the tables of the libraries
 * that trained them). They say \s for Unicode's White_Space, PCRE2's \s differs from it by U+180E:
 * so the set is spelled out. What no pattern matches is a word too, so alternatives that only mop up
 * are left out. `$` is written \z: pieces are cut at line ends before.
 */
#pragma once
#include <stdbool.h>
#include "runtime/model/pretokenizer.h"

#define SPACES                                                                                     \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACE           "[" SPACES "]"
#define TRAILING_SPACES SPACE "+(?![^" SPACES "])|" SPACE "+"
#define LINE_ENDS       SPACE "*[\\r\\n]+|" TRAILING_SPACES
#define CONTRACTIONS    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

#define GPT2                                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACES "\\p{L}\\p{N}]+|" TRAILING_SPACES
/* Llama 3's, Qwen's and their kin: what a letter is, and how digits are cut. */
#define LLAMA3(letter, digits)                                                                     \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[" letter "]+|" digits "| ?[^" SPACES letter              \
                 "\\p{N}]+[\\r\\n]*|" LINE_ENDS
/* Words that keep their capitals together: GPT-4o's (with contractions) and Tekken's. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(contractions, digits)                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contractions "|[^\\r\\n\\p{L}\\p{N}]?" UPPER      \
    "+" LOWER "*" contractions "|" digits "| ?[^" SPACES "\\p{L}\\p{N}]+[\\r\\n/]*|" LINE_ENDS

#define NEWLINE      "[\\r\\n]"
#define DIGIT        "\\p{N}"
#define DIGITS       "\\p{N}+"
#define THREE_DIGITS "[0-9][0-9][0-9]"
#define UP_TO_3      "\\p{N}{1,3}"
#define CJK          "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define HAN_AND_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define DEEPSEEK_PUNCTUATION                                                                       \
    SPACE "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"
#define DEEPSEEK_V3                                                                                \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"           \
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINE_ENDS

/* The letters that have case, of the scripts and the Unicode version that DeepSeek's first
 * tokenizer knew. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z"                                                                                       \
    "\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                       \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"                  \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"                       \
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"                 \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                 \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}"        \
    "\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"         \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"                 \
    "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"                  \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"                   \
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"        \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"         \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"                  \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"                 \
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"               \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"         \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"

struct pretokenizer_row {
    const char *name; /* tokenizer.ggml.pre */
    bool adds_bos, whole_words;
    const char *patterns[PRETOKENIZER_STAGES_MAX + 1]; /* ended by NULL */
};

/* clang-format off */
static const struct pretokenizer_row table[] = {
    {"gpt-2",          false, false, {GPT2}},
    {"olmo",           false, false, {GPT2}},
    {"mpt",            false, false, {GPT2}},
    {"phi-2",          false, false, {GPT2}},
    {"llama-bpe",      true,  true,  {LLAMA3("\\p{L}", UP_TO_3)}},
    {"llama3",         true,  true,  {LLAMA3("\\p{L}", UP_TO_3)}},
    {"llama-v3",       true,  true,  {LLAMA3("\\p{L}", UP_TO_3)}},
    {"glm4",           false, false, {LLAMA3("\\p{L}", UP_TO_3)}},
    {"chatglm-bpe",    false, false, {LLAMA3("\\p{L}", UP_TO_3)}},
    {"dbrx",           false, false, {LLAMA3("\\p{L}", UP_TO_3)}},
    {"smaug-bpe",      false, false, {LLAMA3("\\p{L}", UP_TO_3)}},
    {"qwen2",          false, false, {LLAMA3("\\p{L}", DIGIT)}},
    {"deepseek-r1-qwen", false, false, {LLAMA3("\\p{L}", DIGIT)}},
    {"stablelm2",      false, false, {LLAMA3("\\p{L}", DIGIT)}},
    {"qwen35",         false, false, {LLAMA3("\\p{L}\\p{M}", DIGIT)}},
    {"smollm",         false, false, {DIGIT, GPT2}},
    {"starcoder",      false, false, {DIGIT, GPT2}},
    {"refact",         false, false, {DIGIT, GPT2}},
    {"command-r",      false, false, {DIGIT, GPT2}},
    {"codeshell",      false, false, {DIGIT, GPT2}},
    {"falcon",         false, false, {"[\\p{P}$+<=>^~|`]+", GPT2, THREE_DIGITS}},
    {"default",        false, false, {"[\\p{P}$+<=>^~|]+", GPT2, DIGITS, THREE_DIGITS}},
    {"deepseek-llm",   false, false, {NEWLINE, SPACE "?[" DEEPSEEK_LETTERS "]+", DEEPSEEK_PUNCTUATION,
                                      SPACE "+\\z", CJK, DIGITS}},
    {"deepseek-coder", false, false, {NEWLINE, SPACE "?\\p{L}+", SPACE "?\\p{P}+", CJK, DIGIT}},
    {"deepseek-v3",    false, false, {UP_TO_3, HAN_AND_KANA, DEEPSEEK_V3}},
    {"gpt-4o",         false, false, {CASED(CONTRACTIONS "?", UP_TO_3)}},
    {"llama4",         false, false, {CASED(CONTRACTIONS "?", UP_TO_3)}},
    {"tekken",         true,  true,  {CASED("", DIGIT)}},
};
/* clang-format on */
