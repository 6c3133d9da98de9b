// parse_pickle: one function for each group of opcodes, a stack of references and of marks.
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "strata/base/error.h"
#include "strata/hf/formats/pickle.h"

namespace strata::hf {

class PickleParser {
 public:
  PickleParser(std::span<const std::byte> bytes, const std::string& subject,
               const GlobalFilter& allows)
      : bytes_(bytes), allows_(allows) {
    pickle_.subject_ = subject;
  }

  Pickle parse() {
    while (true) {
      const auto code = static_cast<unsigned char>(std::to_integer<uint8_t>(take(1)[0]));
      if (code == '.') break;
      if (!step_value(code) && !step_container(code) && !step_object(code) && !step_memo(code)) {
        fail(fmt::format("the opcode 0x{:02x}", code), "tensors, containers and numbers only");
      }
    }
    pickle_.root_ = pop();
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fail(const std::string& found, const std::string& expected) const {
    throw FormatError("{}: found {} at byte {} of the pickle, expected {}; nothing of it was run",
                      pickle_.subject_, found, at_, expected);
  }

  std::span<const std::byte> take(uint64_t count) {
    if (count > bytes_.size() - at_) fail("its end", fmt::format("{} more bytes", count));
    const auto part = bytes_.subspan(at_, count);
    at_ += count;
    return part;
  }
  uint64_t number(int size) {
    uint64_t value = 0;
    const auto bytes = take(static_cast<uint64_t>(size));
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
    }
    return value;
  }
  std::string text(uint64_t length) {
    const auto bytes = take(length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string line() {
    std::string result;
    for (char c; (c = static_cast<char>(take(1)[0])) != '\n';) result += c;
    return result;
  }

  PickleNode& make(PickleKind kind) {
    pickle_.nodes_.push_back({.kind = kind, .text = {}, .items = {}});
    stack_.push_back(static_cast<PickleRef>(pickle_.nodes_.size() - 1));
    return pickle_.nodes_.back();
  }
  PickleRef pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("too few values", "one more");
    const PickleRef ref = stack_.back();
    stack_.pop_back();
    return ref;
  }
  PickleRef top() {
    const PickleRef ref = pop();
    stack_.push_back(ref);
    return ref;
  }
  std::vector<PickleRef> pop_to_mark() {
    if (marks_.empty()) fail("no mark", "one");
    const size_t begin = marks_.back();
    marks_.pop_back();
    std::vector<PickleRef> items(stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
    stack_.resize(begin);
    return items;
  }
  // A global at which a call, a build or an import stops.
  void make_global(const std::string& module, const std::string& name) {
    constexpr size_t kMaxName = 256;
    if (module.size() + name.size() > kMaxName)
      fail("a global with an endless name", "a short one");
    const std::string global = module + " " + name;
    if (!allows_(global)) {
      fail("the global \"" + global + "\"", "tensors, containers and numbers only");
    }
    make(PickleKind::kGlobal).text = global;
  }

  bool step_value(unsigned char code) {
    switch (code) {
      case 0x80:  // PROTO
        if (number(1) > 5) fail("an unknown protocol", "one up to 5");
        return true;
      case 0x95:  // FRAME
        number(8);
        return true;
      case 'N':
        make(PickleKind::kNone);
        return true;
      case 0x88:
      case 0x89:
        make(PickleKind::kBool).integer = code == 0x88 ? 1 : 0;
        return true;
      case 'J':
        make(PickleKind::kInt).integer = static_cast<int32_t>(number(4));
        return true;
      case 'K':
        make(PickleKind::kInt).integer = static_cast<int64_t>(number(1));
        return true;
      case 'M':
        make(PickleKind::kInt).integer = static_cast<int64_t>(number(2));
        return true;
      case 0x8a: {  // LONG1
        const auto size = static_cast<int>(number(1));
        if (size > 8) fail(fmt::format("a number of {} bytes", size), "at most 8");
        uint64_t value = number(size);
        if (size > 0 && size < 8 && (value >> (8 * size - 1)) != 0) value |= ~0ULL << (8 * size);
        make(PickleKind::kInt).integer = static_cast<int64_t>(value);
        return true;
      }
      case 'G': {  // big-endian double
        uint64_t bits = 0;
        for (const std::byte byte : take(8)) bits = bits << 8 | std::to_integer<uint64_t>(byte);
        double value;
        std::memcpy(&value, &bits, sizeof(value));
        make(PickleKind::kFloat).number = value;
        return true;
      }
      default:
        return step_text(code);
    }
  }

  bool step_text(unsigned char code) {
    int size = 0;
    if (code == 0x8c || code == 'C' || code == 'U') size = 1;
    if (code == 'X' || code == 'B' || code == 'T') size = 4;
    if (code == 0x8d || code == 0x8e) size = 8;
    if (size == 0) return false;
    std::string value = text(number(size));
    make(PickleKind::kString).text = std::move(value);
    return true;
  }

  bool step_container(unsigned char code) {
    switch (code) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case ')':
        make(PickleKind::kTuple);
        return true;
      case ']':
      case 0x8f:  // EMPTY_SET
        make(PickleKind::kList);
        return true;
      case '}':
        make(PickleKind::kDict);
        return true;
      case 't':
      case 'l':
      case 0x91: {  // FROZENSET
        std::vector<PickleRef> items = pop_to_mark();
        make(code == 't' ? PickleKind::kTuple : PickleKind::kList).items = std::move(items);
        return true;
      }
      case 'd': {
        std::vector<PickleRef> items = pop_to_mark();
        PickleNode& dict = make(PickleKind::kDict);
        require_pairs(items);
        dict.items = std::move(items);
        return true;
      }
      case 0x85:
      case 0x86:
      case 0x87: {
        std::vector<PickleRef> items(code - 0x84);
        for (size_t i = items.size(); i-- > 0;) items[i] = pop();
        make(PickleKind::kTuple).items = std::move(items);
        return true;
      }
      default:
        return step_filling(code);
    }
  }

  bool step_filling(unsigned char code) {
    std::vector<PickleRef> items;
    bool is_dict = false;
    switch (code) {
      case 'a':
        items = {pop()};
        break;
      case 'e':
      case 0x90:  // ADDITEMS
        items = pop_to_mark();
        break;
      case 's': {
        const PickleRef value = pop();
        items = {pop(), value};
        is_dict = true;
        break;
      }
      case 'u':
        items = pop_to_mark();
        require_pairs(items);
        is_dict = true;
        break;
      default:
        return false;
    }
    PickleNode& target = pickle_.nodes_[top()];
    // An OrderedDict is a call; its items become its third part, a dict.
    if (is_dict && target.kind == PickleKind::kCall) return fill_call(top(), std::move(items));
    if (target.kind != (is_dict ? PickleKind::kDict : PickleKind::kList)) {
      fail("items for another kind of value", is_dict ? "a dict" : "a list");
    }
    target.items.insert(target.items.end(), items.begin(), items.end());
    return true;
  }

  bool fill_call(PickleRef call, std::vector<PickleRef> items) {
    if (pickle_.nodes_[call].items.size() < 3) {
      pickle_.nodes_.push_back({.kind = PickleKind::kDict, .text = {}, .items = {}});
      const auto dict = static_cast<PickleRef>(pickle_.nodes_.size() - 1);
      pickle_.nodes_[call].items.push_back(dict);
    }
    PickleNode& dict = pickle_.nodes_[pickle_.nodes_[call].items[2]];
    if (dict.kind != PickleKind::kDict) fail("items for an object with a state", "a dict");
    dict.items.insert(dict.items.end(), items.begin(), items.end());
    return true;
  }

  void require_pairs(const std::vector<PickleRef>& items) const {
    if (items.size() % 2 != 0) fail("a key without a value", "pairs");
  }

  bool step_object(unsigned char code) {
    switch (code) {
      case 'c': {
        const std::string module = line();
        make_global(module, line());
        return true;
      }
      case 0x93: {  // STACK_GLOBAL
        const PickleNode& name = pickle_.nodes_[pop()];
        const PickleNode& module = pickle_.nodes_[pop()];
        if (name.kind != PickleKind::kString || module.kind != PickleKind::kString) {
          fail("a global without a name", "two texts");
        }
        make_global(module.text, name.text);
        return true;
      }
      case 'R':
      case 0x81: {  // NEWOBJ
        const PickleRef arguments = pop();
        const PickleRef callee = pop();
        if (pickle_.nodes_[callee].kind != PickleKind::kGlobal ||
            pickle_.nodes_[arguments].kind != PickleKind::kTuple) {
          fail("a call of something else", "a global and a tuple");
        }
        make(PickleKind::kCall).items = {callee, arguments};
        return true;
      }
      case 'b': {
        const PickleRef state = pop();
        PickleNode& object = pickle_.nodes_[top()];
        if (object.kind != PickleKind::kCall) fail("a state for a plain value", "an object");
        // A dict with attributes (_metadata of a state dict) says nothing that matters here.
        if (object.items.size() < 3) object.items.push_back(state);
        return true;
      }
      case 'Q': {
        const PickleRef id = pop();
        make(PickleKind::kPersistent).items = {id};
        return true;
      }
      default:
        return false;
    }
  }

  bool step_memo(unsigned char code) {
    switch (code) {
      case 'q':
      case 'r': {
        const uint64_t key = number(code == 'q' ? 1 : 4);
        memo_[key] = top();
        return true;
      }
      case 0x94: {
        const uint64_t key = memo_.size();
        memo_[key] = top();
        return true;
      }
      case 'h':
      case 'j': {
        const auto found = memo_.find(number(code == 'h' ? 1 : 4));
        if (found == memo_.end()) fail("a memo that was never set", "one");
        stack_.push_back(found->second);
        return true;
      }
      case '0':
        pop();
        return true;
      case '1':
        pop_to_mark();
        return true;
      case '2': {
        const PickleRef ref = top();
        stack_.push_back(ref);
        return true;
      }
      default:
        return false;
    }
  }

  std::span<const std::byte> bytes_;
  const GlobalFilter& allows_;
  uint64_t at_ = 0;
  Pickle pickle_;
  std::vector<PickleRef> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleRef> memo_;
};

Pickle parse_pickle(std::span<const std::byte> bytes, const std::string& subject,
                    const GlobalFilter& allows) {
  return PickleParser(bytes, subject, allows).parse();
}

const PickleNode* Pickle::find(const PickleNode& dict, std::string_view key) const {
  if (dict.kind != PickleKind::kDict) return nullptr;
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleNode& name = node(dict.items[i]);
    if (name.kind == PickleKind::kString && name.text == key) return &node(dict.items[i + 1]);
  }
  return nullptr;
}

bool Pickle::is_call(const PickleNode& call, std::string_view global) const {
  return call.kind == PickleKind::kCall && node(call.items[0]).text == global;
}

const PickleNode& Pickle::argument(const PickleNode& call, size_t i) const {
  const PickleNode& arguments = node(call.items[1]);
  if (i >= arguments.items.size()) {
    throw FormatError(
        "{}: found a call of \"{}\" with {} arguments, expected at least {}; the file "
        "is damaged",
        subject_, node(call.items[0]).text, arguments.items.size(), i + 1);
  }
  return node(arguments.items[i]);
}

}  // namespace strata::hf
