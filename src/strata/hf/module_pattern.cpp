// By Oniguruma. Never: names of layers.
#include "strata/hf/module_pattern.h"

#include <memory>
#include <mutex>

#include <oniguruma.h>

#include "strata/base/error.h"

namespace strata::hf {
namespace {

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, /*free_self=*/1); }
};
using Region = std::unique_ptr<OnigRegion, FreeRegion>;

void initialize_oniguruma() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
}

const OnigUChar* bytes(const std::string& text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

bool match(void* regex, const std::string& path, OnigRegion* region) {
  const OnigUChar* end = bytes(path) + path.size();
  return onig_match(static_cast<regex_t*>(regex), bytes(path), end, bytes(path), region,
                    ONIG_OPTION_NONE) == static_cast<int>(path.size());
}

}  // namespace

ModulePattern::ModulePattern(const std::string& expression, const std::string& setting) {
  initialize_oniguruma();
  // \Z: re.fullmatch lets the expression backtrack until it reaches the end.
  const std::string whole = "(?:" + expression + ")\\Z";
  OnigErrorInfo info;
  regex_t* regex = nullptr;
  // In Python groups without a name are captured beside those with one.
  const int status =
      onig_new(&regex, bytes(whole), bytes(whole) + whole.size(), ONIG_OPTION_CAPTURE_GROUP,
               ONIG_ENCODING_UTF8, ONIG_SYNTAX_PYTHON, &info);
  if (status != ONIG_NORMAL) {
    OnigUChar message[ONIG_MAX_ERROR_MESSAGE_LEN];
    onig_error_code_to_str(message, status, &info);
    throw ConfigError(
        "{}: found the expression \"{}\" ({}), expected a regular expression; correct it or pass a "
        "list of names",
        setting, expression, reinterpret_cast<const char*>(message));
  }
  regex_ = regex;
}

ModulePattern::~ModulePattern() { onig_free(static_cast<regex_t*>(regex_)); }

bool ModulePattern::matches(const std::string& path) const { return match(regex_, path, nullptr); }

std::optional<std::string> ModulePattern::group(const std::string& path,
                                                const std::string& name) const {
  const Region region(onig_region_new());
  if (!match(regex_, path, region.get())) return {};
  const int number = onig_name_to_backref_number(static_cast<regex_t*>(regex_), bytes(name),
                                                 bytes(name) + name.size(), region.get());
  if (number < 0 || region->beg[number] < 0) return {};
  const auto begin = static_cast<size_t>(region->beg[number]);
  return path.substr(begin, static_cast<size_t>(region->end[number]) - begin);
}

}  // namespace strata::hf
