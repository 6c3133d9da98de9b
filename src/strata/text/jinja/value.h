// Values of the template language: Python's None, bool, int, float, str, list, tuple, dict and
// callables, with Python's rules for truth, equality, order and text.
// Never looks at templates; never touches files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "strata/base/json.h"

namespace strata::text::jinja {

// A fault of a template or its data; the interpreter adds the line.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Work and memory that one rendering may use, so that no template can hang or exhaust the process.
struct Budget {
  int64_t steps_left = 20'000'000;
  int filter_depth = 0;  // filters that apply filters, in progress
  static constexpr size_t kMaxTextBytes = size_t{64} << 20;
  static constexpr size_t kMaxItems = 2'000'000;
  static constexpr int kMaxDepth = 200;

  void spend(int64_t steps = 1) {
    if ((steps_left -= steps) < 0) throw Fault("the template takes too many steps");
  }
  static void check_text(size_t bytes) {
    if (bytes > kMaxTextBytes) throw Fault("the template makes a text of more than 64 MiB");
  }
  static void check_items(size_t items) {
    if (items > kMaxItems) throw Fault("the template makes a list of more than 2000000 items");
  }
};

class Value;
using Items = std::vector<Value>;
struct Arguments;

struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"
};
struct None {};

// Beyond 64 bits: printed, compared and turned into a float; no other arithmetic reaches it.
struct BigInteger {
  std::shared_ptr<const std::string> digits;  // a sign, no leading zero
};

struct List {
  Items items;
  bool is_tuple = false;
  bool is_group = false;  // a pair of groupby: .grouper and .list
};

// What filters such as map and select give: items that are handed out once. It counts as true even
// without any, has no length and no element by number.
struct Generator {
  Items items;
  size_t num_taken = 0;
};

// Keeps the order of insertion. Keys are None, bool, int, float or str.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  bool is_namespace = false;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
};

struct Callable {
  std::string name;
  std::function<Value(Arguments&)> call;
  // Attributes: a macro's name, `loop.index` of the loop object.
  std::function<Value(std::string_view)> attribute;
  const char* type_name = "function";
};

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  Value() : data_(None{}) {}
  Value(Undefined v) : data_(std::move(v)) {}
  Value(bool v) : data_(v) {}
  Value(int64_t v) : data_(v) {}
  Value(int v) : data_(static_cast<int64_t>(v)) {}
  Value(size_t v) : data_(static_cast<int64_t>(v)) {}
  Value(double v) : data_(v) {}
  Value(BigInteger v) : data_(std::move(v)) {}
  Value(std::string v) : data_(std::make_shared<const std::string>(std::move(v))) {}
  Value(std::string_view v) : Value(std::string(v)) {}
  Value(const char* v) : Value(std::string(v)) {}
  Value(std::shared_ptr<const List> v) : data_(std::move(v)) {}
  Value(std::shared_ptr<Dict> v) : data_(std::move(v)) {}
  Value(std::shared_ptr<Generator> v) : data_(std::move(v)) {}
  Value(std::shared_ptr<const Callable> v) : data_(std::move(v)) {}
  Value(const Value&) = default;
  Value(Value&&) noexcept = default;
  Value& operator=(const Value&) = default;
  Value& operator=(Value&&) noexcept = default;
  ~Value() {
    if (data_.index() >= kFirstNesting) take_apart();
  }
  static Value list(Items items, bool is_tuple = false);
  static Value generator(Items items);
  static Value undefined(std::string why);
  static Value from_json(const Json& json, int depth = 0);
  static Value big(std::string digits);
  // A text that `safe` or `escape` gave.
  static Value marked(std::string text);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_big() const { return std::holds_alternative<BigInteger>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_float() || is_big(); }
  bool is_integral() const { return is_bool() || is_int(); }
  bool is_string() const { return std::holds_alternative<Text>(data_); }
  bool is_marked() const { return is_marked_; }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(data_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<Dict>>(data_); }
  bool is_generator() const { return std::holds_alternative<std::shared_ptr<Generator>>(data_); }
  bool is_callable() const {
    return std::holds_alternative<std::shared_ptr<const Callable>>(data_);
  }

  const std::string& text() const { return *std::get<Text>(data_); }
  const List& as_list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  Dict& as_dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  const std::shared_ptr<Dict>& shared_dict() const {
    return std::get<std::shared_ptr<Dict>>(data_);
  }
  Generator& as_generator() const { return *std::get<std::shared_ptr<Generator>>(data_); }
  const Callable& as_callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }
  const Undefined& as_undefined() const { return std::get<Undefined>(data_); }
  int64_t integer() const;  // of a bool or int
  double number() const;    // of any number; Fault for an integer beyond the range of double
  const std::string& big_digits() const { return *std::get<BigInteger>(data_).digits; }

  const char* type_name() const;  // Python's: "str", "dict", ...

 private:
  using Data = std::variant<Undefined, None, bool, int64_t, double, BigInteger, Text,
                            std::shared_ptr<const List>, std::shared_ptr<Dict>,
                            std::shared_ptr<Generator>, std::shared_ptr<const Callable>>;
  // From this kind on they hold other values.
  static constexpr size_t kFirstNesting = 7;
  static_assert(
      std::is_same_v<std::variant_alternative_t<kFirstNesting, Data>, std::shared_ptr<const List>>);
  // Destroys what nobody else holds, and what that alone held, one after another: a template may
  // nest values deeper than the stack reaches.
  void take_apart() noexcept;

  Data data_;
  bool is_marked_ = false;
};

// What a filter, test, method, function or macro is called with.
struct Arguments {
  Items positional;
  std::vector<std::pair<std::string, Value>> named;
  Budget& budget;

  // The argument at `index` or called `name`, or nullptr.
  const Value* find(size_t index, std::string_view name) const;
  Value get(size_t index, std::string_view name, Value fallback) const;
  int64_t get_int(size_t index, std::string_view name, int64_t fallback) const;
  std::string get_text(size_t index, std::string_view name, std::string fallback) const;
  bool get_bool(size_t index, std::string_view name, bool fallback) const;
  const Value& require(size_t index, std::string_view name) const;
  // Fault when there are more positional arguments or other names than a function takes.
  void expect_at_most(size_t positional_count, std::initializer_list<std::string_view> names) const;
};

bool is_true(const Value& value);
bool equals(const Value& a, const Value& b, Budget& budget, int depth = 0);
// Negative, 0 or positive; Fault for types that have no order.
int compare(const Value& a, const Value& b, Budget& budget, int depth = 0);
bool contains(const Value& container, const Value& item, Budget& budget);
// The items that a for loop sees: of a list, the keys of a dict, the characters of a text, what is
// left of a generator.
Items iterate(const Value& value, Budget& budget);
// len(); Fault for values without one.
int64_t length_of(const Value& value);

// str(value) and repr(value).
std::string to_text(const Value& value, Budget& budget);
std::string to_repr(const Value& value, Budget& budget);
std::string repr_text(std::string_view text);

struct JsonStyle {
  bool ensure_ascii = false;
  std::string indent;  // unit of indentation
  bool has_indent = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
// json.dumps(value).
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

// Text by characters (code points), as Python counts.
size_t count_chars(std::string_view text);
std::vector<std::string_view> split_chars(std::string_view text);

}  // namespace strata::text::jinja
