#include "strata/comm/store_texts.h"

#include <stdexcept>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace strata::comm {

void set_text(c10d::Store& store, const std::string& key, std::string_view text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

std::vector<std::string> texts_of(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  try {
    for (const std::vector<uint8_t>& bytes : store.multiGet(keys)) {
      texts.emplace_back(bytes.begin(), bytes.end());
    }
  } catch (const std::exception& error) {
    std::string reason = error.what();
    reason.resize(std::min({reason.size(), reason.find('\n'), reason.find(", keys: ")}));
    throw std::runtime_error(reason);
  }
  return texts;
}

}  // namespace strata::comm
