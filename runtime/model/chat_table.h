/* runtime/model/chat_table.h - the chat templates in use, one row each; for chat.c alone.
 *
 * A template is recognised by its signs: pieces of its text, all of which must be there; the first
 * row that has them counts, so the narrower comes first. What stands before and after a turn is
 * text with marks in it: MARK("<|im_end|>") is the special token of that spelling, or its text in a
 * vocabulary without it; BOS and EOS are the vocabulary's own. Source of each: the template that the
 * model's authors publish with it.
 */
#pragma once
#include "runtime/model/chat.h"

#define SIGNS_MAX   3
#define MARK_BEGIN  '\1'
#define MARK_END    '\2'
#define MARK(text)  "\1" text "\2"
#define BOS         "\3"
#define EOS         "\4"
#define BAR         "\357\275\234" /* U+FF5C, in DeepSeek's marks */
#define LOW_LINE    "\342\226\201" /* U+2581, in DeepSeek's marks */
#define DEEPSEEK(a) MARK("<" BAR a BAR ">")

struct chat_template {
    const char *name;
    const char *signs[SIGNS_MAX + 1]; /* ended by NULL */
    const char *begin;                /* before the first turn, behind BOS; NULL: nothing */
    struct chat_around {
        const char *before, *after;
    } turns[CHAT_ROLES];     /* system, user, assistant, tool */
    const char *answer;      /* the opening of the assistant's */
    bool begins_with_bos;    /* whatever the vocabulary's habit; else by that */
    bool bos_in_turns;       /* BOS stands in the turns: none before them */
    bool system_opens_user;  /* the system prompt is the beginning of the user's turn */
    bool trims;              /* blanks around a content go */
    bool marks_strip;        /* of a SentencePiece vocabulary: marks take the blanks behind them */
    bool has_default_system; /* where the template's text has one, it is put when no other is */
};

#define IM(role)      MARK("<|im_start|>") role "\n", MARK("<|im_end|>") "\n"
#define HEADER(role)  MARK("<|start_header_id|>") role MARK("<|end_header_id|>") "\n\n"
#define PHI(role)     MARK("<|" role "|>") "\n", MARK("<|end|>") "\n"
#define PHI_4M(role)  MARK("<|" role "|>"), MARK("<|end|>")
#define ZEPHYR(role)  "<|" role "|>\n", EOS "\n"
#define ROLE(role)    MARK("<|start_of_role|>") role MARK("<|end_of_role|>")
#define GRANITE(role) ROLE(role), MARK("<|end_of_text|>") "\n"
#define SEP(role)     MARK("<|im_start|>") role MARK("<|im_sep|>")
#define INST          MARK("[INST]")
#define INST_END      MARK("[/INST]")

/* clang-format off */
static const struct chat_template chat_templates[] = {
    {.name = "phi-4", .signs = {"<|im_start|>", "<|im_sep|>"},
     .turns = {{SEP("system"), MARK("<|im_end|>")}, {SEP("user"), MARK("<|im_end|>")},
               {SEP("assistant"), MARK("<|im_end|>")}, {SEP("tool"), MARK("<|im_end|>")}},
     .answer = SEP("assistant")},
    {.name = "qwen", .signs = {"<|im_start|>", "<tool_response>"}, .has_default_system = true,
     .turns = {{IM("system")}, {IM("user")}, {IM("assistant")},
               {MARK("<|im_start|>") "user\n<tool_response>\n", "\n</tool_response>" MARK("<|im_end|>") "\n"}},
     .answer = MARK("<|im_start|>") "assistant\n"},
    {.name = "qwen", .signs = {"<|im_start|>", "You are a helpful assistant"}, .has_default_system = true,
     .turns = {{IM("system")}, {IM("user")}, {IM("assistant")}, {IM("tool")}},
     .answer = MARK("<|im_start|>") "assistant\n"},
    {.name = "chatml", .signs = {"<|im_start|>"}, .has_default_system = true,
     .turns = {{IM("system")}, {IM("user")}, {IM("assistant")}, {IM("tool")}},
     .answer = MARK("<|im_start|>") "assistant\n"},
    {.name = "llama-3", .signs = {"<|start_header_id|>"}, .begins_with_bos = true, .trims = true,
     .turns = {{HEADER("system"), MARK("<|eot_id|>")}, {HEADER("user"), MARK("<|eot_id|>")},
               {HEADER("assistant"), MARK("<|eot_id|>")}, {HEADER("ipython"), MARK("<|eot_id|>")}},
     .answer = HEADER("assistant")},
    {.name = "granite", .signs = {"<|start_of_role|>"},
     .turns = {{GRANITE("system")}, {GRANITE("user")}, {GRANITE("assistant")}, {GRANITE("tool_response")}},
     .answer = ROLE("assistant")},
    {.name = "gemma", .signs = {"<start_of_turn>"}, .begins_with_bos = true, .trims = true, .system_opens_user = true,
     .turns = {{MARK("<start_of_turn>") "user\n", "\n\n"}, {MARK("<start_of_turn>") "user\n", MARK("<end_of_turn>") "\n"},
               {MARK("<start_of_turn>") "model\n", MARK("<end_of_turn>") "\n"},
               {MARK("<start_of_turn>") "user\n", MARK("<end_of_turn>") "\n"}},
     .answer = MARK("<start_of_turn>") "model\n"},
    {.name = "glm-4", .signs = {"[gMASK]", "<sop>"}, .begin = MARK("[gMASK]") MARK("<sop>"),
     .turns = {{MARK("<|system|>") "\n", ""}, {MARK("<|user|>") "\n", ""}, {MARK("<|assistant|>") "\n", ""},
               {MARK("<|observation|>") "\n", ""}},
     .answer = MARK("<|assistant|>")},
    {.name = "deepseek-r1", .signs = {"<" BAR "Assistant" BAR "><think>"}, .begins_with_bos = true,
     .turns = {{"", ""}, {DEEPSEEK("User"), ""}, {DEEPSEEK("Assistant"), EOS},
               {DEEPSEEK("tool" LOW_LINE "outputs" LOW_LINE "begin") DEEPSEEK("tool" LOW_LINE "output" LOW_LINE "begin"),
                DEEPSEEK("tool" LOW_LINE "output" LOW_LINE "end") DEEPSEEK("tool" LOW_LINE "outputs" LOW_LINE "end")}},
     .answer = DEEPSEEK("Assistant") MARK("<think>") "\n"},
    {.name = "deepseek-v3", .signs = {"<" BAR "Assistant" BAR ">"}, .begins_with_bos = true,
     .turns = {{"", ""}, {DEEPSEEK("User"), ""}, {DEEPSEEK("Assistant"), EOS},
               {DEEPSEEK("tool" LOW_LINE "outputs" LOW_LINE "begin") DEEPSEEK("tool" LOW_LINE "output" LOW_LINE "begin"),
                DEEPSEEK("tool" LOW_LINE "output" LOW_LINE "end") DEEPSEEK("tool" LOW_LINE "outputs" LOW_LINE "end")}},
     .answer = DEEPSEEK("Assistant")},
    {.name = "phi-3", .signs = {"<|user|>", "<|end|>", "<|assistant|>"}, .marks_strip = true,
     .turns = {{PHI("system")}, {PHI("user")}, {PHI("assistant")}, {PHI("tool")}},
     .answer = MARK("<|assistant|>") "\n"},
    {.name = "phi-3", .signs = {"'<|' + message['role'] + '|>' + '", "<|end|>"}, .marks_strip = true,
     .turns = {{PHI("system")}, {PHI("user")}, {PHI("assistant")}, {PHI("tool")}},
     .answer = MARK("<|assistant|>") "\n"},
    {.name = "phi-4-mini", .signs = {"'<|' + message['role'] + '|>'", "<|end|>"},
     .turns = {{PHI_4M("system")}, {PHI_4M("user")}, {PHI_4M("assistant")}, {PHI_4M("tool")}},
     .answer = MARK("<|assistant|>")},
    {.name = "zephyr", .signs = {"<|user|>", "<|assistant|>", "eos_token"},
     .turns = {{ZEPHYR("system")}, {ZEPHYR("user")}, {ZEPHYR("assistant")}, {ZEPHYR("user")}},
     .answer = "<|assistant|>\n"},
    {.name = "llama-2", .signs = {"[INST]", "<<SYS>>"}, .bos_in_turns = true, .system_opens_user = true, .trims = true,
     .turns = {{BOS INST " <<SYS>>\n", "\n<</SYS>>\n\n"}, {BOS INST " ", " " INST_END}, {" ", " " EOS},
               {BOS INST " ", " " INST_END}},
     .answer = ""},
    {.name = "mistral-v7", .signs = {"[INST]", "[SYSTEM_PROMPT]"}, .begins_with_bos = true,
     .turns = {{MARK("[SYSTEM_PROMPT]"), MARK("[/SYSTEM_PROMPT]")}, {INST, INST_END}, {"", EOS},
               {MARK("[TOOL_RESULTS]"), MARK("[/TOOL_RESULTS]")}},
     .answer = ""},
    {.name = "mistral-v1", .signs = {"[INST] ", " [/INST]"}, .begins_with_bos = true, .system_opens_user = true,
     .turns = {{INST " ", "\n\n"}, {INST " ", " " INST_END}, {" ", EOS}, {INST " ", " " INST_END}},
     .answer = ""},
    {.name = "mistral-v3", .signs = {"[INST] "}, .begins_with_bos = true, .system_opens_user = true,
     .turns = {{INST " ", "\n\n"}, {INST " ", INST_END}, {" ", EOS}, {MARK("[TOOL_RESULTS]") " ", MARK("[/TOOL_RESULTS]")}},
     .answer = ""},
    {.name = "mistral-tekken", .signs = {"[INST]"}, .begins_with_bos = true, .system_opens_user = true,
     .turns = {{INST, "\n\n"}, {INST, INST_END}, {"", EOS}, {MARK("[TOOL_RESULTS]"), MARK("[/TOOL_RESULTS]")}},
     .answer = ""},
    {.name = "deepseek-coder", .signs = {"### Instruction:", "<|EOT|>"}, .begins_with_bos = true,
     .turns = {{"", "\n"}, {"### Instruction:\n", "\n"}, {"### Response:\n", "\n" MARK("<|EOT|>") "\n"},
               {"### Instruction:\n", "\n"}},
     .answer = "### Response:\n"},
    {.name = "deepseek", .signs = {"User: ", "Assistant:"}, .begins_with_bos = true,
     .turns = {{"", "\n\n"}, {"User: ", "\n\n"}, {"Assistant: ", EOS}, {"User: ", "\n\n"}},
     .answer = "Assistant:"},
    /* contents alone: a template that knows no roles; chat_template_find() says when */
    {.name = "plain", .signs = {NULL}, .turns = {{"", ""}, {"", ""}, {"", ""}, {"", ""}}, .answer = ""},
};
/* clang-format on */
