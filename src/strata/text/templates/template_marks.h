// What a chat template asks of a tokenizer: marks that must be tokens of their own, the named
// end-of-sequence token, the date. Reads the template's text, never renders it.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "strata/text/tokenizer.h"

namespace strata::text {

// Marks that the template writes and that the tokenizer cuts into pieces, sorted. Marks are
//   <|im_start|>, <|turn>, <turn|> and the like (also with DeepSeek's wide bars),
//   <start_of_turn>, <end_of_utterance> and the like, <s> </s> <bos> <eos> <pad> <unk> <sop> <eop>
//   [gMASK], and those of Mistral ([INST], [TOOL_CALLS], ...) where [INST] is a token.
// <think>, <tool_call>, <<SYS>> and other tags are plain text to many published tokenizers and do
// not count; neither does a mark with which an added token begins (<|im_start|>user).
// `is_own`: the template came with the tokenizer. Some were published so that their role marks
// (<|user|>, <|assistant|>, <|system|>) are plain text, which is then no mistake.
// A template that cannot be read has none: its reader says what is wrong.
std::vector<std::string> marks_without_token(const std::string& source, const Tokenizer& tokenizer,
                                             bool is_own);

// Whether the template writes eos_token, without asking whether there is one, for a tokenizer that
// has none: it then writes nothing.
bool lacks_end_token(const std::string& source, const Tokenizer& tokenizer);

// What the template's strftime_now() calls give at that time, for all formats that its text holds;
// a format that is not in its text gives the time itself. Empty: the template does not ask.
std::string dates_of(const std::string& source, std::time_t time);

}  // namespace strata::text
