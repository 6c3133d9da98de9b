// Event reader for tokenizer.json. Checks shapes of vocab and merges, not their content.
#include "strata/text/tokenizer_file.h"

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::text {
namespace {

// Builds `document`, except that model.vocab and model.merges go to the flat lists.
class Reader : public nlohmann::json_sax<Json> {
 public:
  explicit Reader(TokenizerFile& file) : file_(file) {}

  bool null() override { return value(Json(nullptr)); }
  bool boolean(bool v) override { return value(Json(v)); }
  bool number_float(double v, const std::string&) override { return value(Json(v)); }
  bool binary(Json::binary_t&) override { return true; }
  bool number_integer(int64_t v) override {
    if (mode_ == Mode::kVocab) return add_vocab(v);
    return value(Json(v));
  }
  bool number_unsigned(uint64_t v) override {
    if (mode_ == Mode::kVocab)
      return add_vocab(v > INT64_MAX ? INT64_MAX : static_cast<int64_t>(v));
    return value(Json(v));
  }
  bool string(std::string& v) override {
    if (mode_ == Mode::kMerges) return add_merge(v);
    if (mode_ == Mode::kMergePair) return pair_.push_back(std::move(v)), true;
    return value(Json(std::move(v)));
  }
  bool key(std::string& v) override {
    key_ = std::move(v);
    return true;
  }
  bool start_object(size_t) override {
    if (mode_ != Mode::kDocument) throw_stream("object");
    if (is_model_field("vocab")) {
      mode_ = Mode::kVocab;
      return file_.has_vocab = true;
    }
    return open(Json::object());
  }
  bool end_object() override {
    if (mode_ == Mode::kVocab) return mode_ = Mode::kDocument, true;
    return close();
  }
  bool start_array(size_t) override {
    if (mode_ == Mode::kMerges) return mode_ = Mode::kMergePair, true;
    if (mode_ != Mode::kDocument) throw_stream("array");
    if (is_model_field("merges")) {
      mode_ = Mode::kMerges;
      return file_.has_merges = true;
    }
    return open(Json::array());
  }
  bool end_array() override {
    if (mode_ == Mode::kMergePair) return add_pair();
    if (mode_ == Mode::kMerges) return mode_ = Mode::kDocument, true;
    return close();
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    throw FormatError("{}: found broken JSON at byte {} ({}), expected a tokenizer.json",
                      file_.subject, position, e.what());
  }

 private:
  enum class Mode { kDocument, kVocab, kMerges, kMergePair };

  bool is_model_field(const char* name) const {
    return stack_.size() == 2 && key_ == name && path_.back() == "model";
  }
  [[noreturn]] void throw_stream(const char* found) const {
    const bool is_vocab = mode_ == Mode::kVocab;
    throw FormatError("{}: found {} in model.{}, expected {}", file_.subject, found,
                      is_vocab ? "vocab" : "merges", is_vocab ? "an integer" : "two strings");
  }
  bool add_vocab(int64_t id) {
    file_.vocab.emplace_back(std::move(key_), id);
    return true;
  }
  bool add_merge(const std::string& merge) {
    const size_t space = merge.find(' ');
    if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos) {
      throw FormatError("{}: found merge {} \"{}\", expected two tokens with a space between",
                        file_.subject, file_.merges.size(), merge);
    }
    file_.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
    return true;
  }
  bool add_pair() {
    if (pair_.size() != 2) {
      throw FormatError("{}: found merge {} of {} strings, expected 2", file_.subject,
                        file_.merges.size(), pair_.size());
    }
    file_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
    pair_.clear();
    mode_ = Mode::kMerges;
    return true;
  }
  Json* place(Json v) {
    if (stack_.empty()) {
      file_.document = std::move(v);
      return &file_.document;
    }
    if (stack_.back()->is_array()) return &stack_.back()->emplace_back(std::move(v));
    return &((*stack_.back())[key_] = std::move(v));
  }
  bool value(Json v) {
    if (mode_ != Mode::kDocument) throw_stream(v.type_name());
    place(std::move(v));
    return true;
  }
  bool open(Json v) {
    if (stack_.size() > 100) {
      throw FormatError("{}: found more than 100 levels of nesting, expected fewer", file_.subject);
    }
    Json* placed = place(std::move(v));
    path_.push_back(key_);
    stack_.push_back(placed);
    return true;
  }
  bool close() {
    stack_.pop_back();
    path_.pop_back();
    return true;
  }

  TokenizerFile& file_;
  Mode mode_ = Mode::kDocument;
  std::string key_;
  std::vector<std::string> path_;
  std::vector<Json*> stack_;  // open containers; the parent of each is not appended to meanwhile
  std::vector<std::string> pair_;
};

}  // namespace

TokenizerFile read_tokenizer_file(const std::filesystem::path& path) {
  TokenizerFile file;
  file.subject = path.string();
  const std::string content = read_file(path);
  Reader reader(file);
  Json::sax_parse(content, &reader);
  if (!file.document.is_object()) {
    throw FormatError("{}: found {}, expected an object", file.subject, file.document.type_name());
  }
  const auto version = file.document.find("version");
  if (version != file.document.end() && *version != "1.0") {
    throw FormatError(
        "{}: found version {}, expected \"1.0\"; save it with a release that writes it",
        file.subject, version->dump());
  }
  return file;
}

}  // namespace strata::text
