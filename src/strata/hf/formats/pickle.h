// Python pickles as data: a restricted reader that builds a tree and runs nothing, and a writer for
// the few shapes that torch's files need. Source: Python's pickletools.
// Never: calls, imports or classes. A global that is not on the caller's list is refused by name.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace strata::hf {

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,  // text or bytes
  kList,
  kTuple,
  kDict,        // items: key, value, key, value, ...
  kGlobal,      // text: "module name"
  kCall,        // items: callee, arguments (a tuple), then state if a BUILD followed
  kPersistent,  // items: the id
};

using PickleRef = uint32_t;

struct PickleNode {
  PickleKind kind = PickleKind::kNone;
  int64_t integer = 0;  // also of a bool
  double number = 0;
  std::string text;
  std::vector<PickleRef> items;
};

// A tree as nodes of one array; parts may be shared and, in a hostile file, contain themselves, so
// that whoever walks it must bound the depth.
class Pickle {
 public:
  const PickleNode& node(PickleRef ref) const { return nodes_[ref]; }
  const PickleNode& root() const { return nodes_[root_]; }
  PickleRef root_ref() const { return root_; }
  const std::string& subject() const { return subject_; }

  // The value of a text key of a dict; nullptr when it is absent or `dict` is none.
  const PickleNode* find(const PickleNode& dict, std::string_view key) const;
  // Whether the node is a call of the global.
  bool is_call(const PickleNode& node, std::string_view global) const;
  // The i-th argument of a call; throws FormatError when there is none.
  const PickleNode& argument(const PickleNode& call, size_t i) const;

 private:
  friend class PickleParser;
  std::vector<PickleNode> nodes_;
  PickleRef root_ = 0;
  std::string subject_;
};

// Says whether a global ("module name") may stand in the file.
using GlobalFilter = std::function<bool(std::string_view global)>;

// Throws FormatError that starts with `subject`: truncated, unknown opcode, refused global.
// Memory: proportional to the bytes.
Pickle parse_pickle(std::span<const std::byte> bytes, const std::string& subject,
                    const GlobalFilter& allows);

// Writes protocol 2.
class PickleWriter {
 public:
  PickleWriter();

  PickleWriter& none();
  PickleWriter& boolean(bool value);
  PickleWriter& integer(int64_t value);
  PickleWriter& real(double value);
  PickleWriter& text(std::string_view value);
  PickleWriter& global(std::string_view module, std::string_view name);
  PickleWriter& empty_dict();
  PickleWriter& empty_list();
  PickleWriter& empty_tuple();
  PickleWriter& mark();
  PickleWriter& tuple();       // of what lies above the mark
  PickleWriter& set_items();   // into the dict under the mark
  PickleWriter& append_all();  // to the list under the mark
  PickleWriter& reduce();      // callee and argument tuple: a call
  PickleWriter& new_object();  // the same for a class
  PickleWriter& build();       // object and state
  PickleWriter& persistent();
  std::string finish();

 private:
  PickleWriter& op(char code);
  std::string out_;
};

}  // namespace strata::hf
