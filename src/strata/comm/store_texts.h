// What ranks tell each other through the store of their rendezvous, while they have no group yet.
// Owns: nothing. Never: which ranks there are, and what the texts mean.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace c10d {
class Store;
}

namespace strata::comm {

void set_text(c10d::Store& store, const std::string& key, std::string_view text);

// The texts under `keys`, once all are there; in one request, whatever their number. Every rank
// asks for what all others say: a request for each would be as many as ranks times ranks, which the
// one thread that serves them takes a minute for where there are a few hundred. Throws
// std::runtime_error with the store's reason, without the list of keys.
std::vector<std::string> texts_of(c10d::Store& store, const std::vector<std::string>& keys);

}  // namespace strata::comm
