#include "strata/checkpoint/special_tokens.h"

#include <algorithm>

namespace strata::checkpoint {

void align_special_tokens(const text::Tokenizer& tokenizer, bool is_generation, Json& config) {
  if (const auto eos = tokenizer.eos_id()) {
    const Json old = config.contains("eos_token_id") ? config["eos_token_id"] : Json();
    Json ids = Json::array({*eos});
    for (const Json& id : old.is_array() ? old : Json::array({old})) {
      if (id.is_number_integer() && id != Json(*eos)) ids.push_back(id);
    }
    const bool is_known = old.is_array()
                              ? std::find(old.begin(), old.end(), Json(*eos)) != old.end()
                              : old == Json(*eos);
    if (!is_known) config["eos_token_id"] = old.is_array() || is_generation ? ids : Json(*eos);
  }
  if (const auto bos = tokenizer.bos_id()) config["bos_token_id"] = *bos;
  if (const auto pad = tokenizer.pad_id()) config["pad_token_id"] = *pad;
}

}  // namespace strata::checkpoint
