// tokenizer.json: what loads must encode and decode any text, with the class that its size chooses.
#include <fstream>

#include "strata/text/tokenizer.h"
#include "target.h"

namespace {

// A folder of this process for the file under test.
const std::filesystem::path& folder() {
  static const std::filesystem::path path = [] {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "fuzz_tokenizer_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) __builtin_trap();
    return std::filesystem::path(pattern);
  }();
  return path;
}

// Of every family some; the others read the file as it is written.
constexpr const char* kClasses[] = {
    "LlamaTokenizer",     "CodeLlamaTokenizer", "GemmaTokenizer",   "T5Tokenizer",
    "AlbertTokenizer",    "DebertaV2Tokenizer", "PegasusTokenizer", "XLNetTokenizer",
    "MBartTokenizer",     "MBart50Tokenizer",   "NllbTokenizer",    "BertTokenizer",
    "OpenAIGPTTokenizer", "Qwen2Tokenizer",     "CohereTokenizer",  "WhisperTokenizer"};

void write_config(size_t size) {
  const size_t choice = size % (2 * std::size(kClasses));
  std::ofstream file(folder() / "tokenizer_config.json");
  if (choice >= std::size(kClasses)) {
    file << "{}";
  } else {
    file << R"({"tokenizer_class": ")" << kClasses[choice]
         << R"(", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "<s>", )"
         << R"("bos_token": "<s>", "eos_token": "<s>", "src_lang": "<s>"})";
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::ofstream(folder() / "tokenizer.json", std::ios::binary) << strata::fuzz::text_of(data, size);
  write_config(size);
  strata::fuzz::expect_answer([] {
    const auto tokenizer = strata::text::Tokenizer::load(folder());
    for (const char* text :
         {"", "ab a b", "<s>x</s> \xc3\xa9\xff\n", "aaaaaaaaaaaaaaaaaaaaaaaa!"}) {
      std::vector<int32_t> ids = tokenizer->encode(text);
      for (const auto& token : tokenizer->encode_with_ranges(text)) {
        if (token.begin > token.end || token.end > std::string_view(text).size()) __builtin_trap();
      }
      ids.insert(ids.end(), {-1, 0, 1, 1 << 30});
      tokenizer->decode(ids);
    }
  });
  return 0;
}
