// The global functions of chat templates.
#include <ctime>

#include "strata/text/jinja/interpreter.h"

namespace strata::text::jinja {
namespace {

Value function(const char* name, std::function<Value(Arguments&)> body) {
  return Value(std::make_shared<const Callable>(Callable{name, std::move(body), nullptr}));
}

Value raise_exception(Arguments& arguments) {
  throw Fault(to_text(arguments.require(0, "message"), arguments.budget));
}

Value make_range(Arguments& arguments) {
  arguments.expect_at_most(3, {});
  for (const Value& value : arguments.positional) {
    if (!value.is_integral()) {
      throw Fault(std::string("range: found ") + value.type_name() + ", expected integers");
    }
  }
  const bool has_start = arguments.positional.size() > 1;
  const int64_t start = has_start ? arguments.positional[0].integer() : 0;
  const int64_t stop = arguments.require(has_start ? 1 : 0, "stop").integer();
  const int64_t step = arguments.positional.size() > 2 ? arguments.positional[2].integer() : 1;
  if (step == 0) throw Fault("range: the step must not be zero");
  constexpr size_t kMaxRange = 100'000;  // as Jinja's sandbox
  Items items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    items.emplace_back(i);
    if (items.size() > kMaxRange) throw Fault("range: found more than 100000 items");
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  arguments.budget.spend(static_cast<int64_t>(items.size()));
  return Value::list(std::move(items));
}

Value make_dict(Arguments& arguments, bool is_namespace) {
  auto dict = std::make_shared<Dict>();
  dict->is_namespace = is_namespace;
  if (arguments.positional.size() > 1) throw Fault("dict: expected at most 1 positional argument");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is_dict()) {
      for (const auto& [key, value] : from.as_dict().entries) dict->set(key, value);
    } else {
      for (const Value& pair : iterate(from, arguments.budget)) {
        const Items items = iterate(pair, arguments.budget);
        if (items.size() != 2) throw Fault("dict: expected pairs");
        dict->set(items[0], items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict->set(name, value);
  for (const auto& [key, value] : dict->entries) {
    if (is_namespace && key.is_string() && key.text().starts_with('_')) {
      throw Fault("a namespace cannot store the underscore-prefixed attribute '" + key.text() +
                  "'");
    }
  }
  return Value(std::move(dict));
}

Value strftime_now(Arguments& arguments) {
  const std::string format = arguments.get_text(0, "format", "");
  return Value(format_time(format, std::time(nullptr)));
}

// cycler("odd", "even"): next(), current, reset().
Value make_cycler(Arguments& arguments) {
  if (arguments.positional.empty()) throw Fault("cycler: at least one item has to be provided");
  const auto items = std::make_shared<const Items>(arguments.positional);
  const auto at = std::make_shared<size_t>(0);
  auto cycler = std::make_shared<Callable>();
  cycler->name = "cycler";
  cycler->type_name = "Cycler";
  cycler->attribute = [items, at](std::string_view name) -> Value {
    if (name == "current") return (*items)[*at];
    if (name == "next") {
      return function("next", [items, at](Arguments&) {
        Value value = (*items)[*at];
        *at = (*at + 1) % items->size();
        return value;
      });
    }
    if (name == "reset") return function("reset", [at](Arguments&) { return *at = 0, Value(); });
    return Value::undefined("'Cycler object' has no attribute '" + std::string(name) + "'");
  };
  return Value(std::shared_ptr<const Callable>(std::move(cycler)));
}

// joiner(", "): empty at the first call, the separator from then on.
Value make_joiner(Arguments& arguments) {
  const std::string separator = arguments.get_text(0, "sep", ", ");
  const auto used = std::make_shared<bool>(false);
  return function("joiner", [separator, used](Arguments&) -> Value {
    if (std::exchange(*used, true)) return separator;
    return "";
  });
}

}  // namespace

std::string format_time(const std::string& format, std::time_t time) {
  std::tm local{};
  localtime_r(&time, &local);
  std::string out(format.size() * 16 + 64, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  return out;
}

std::vector<std::pair<std::string, Value>> global_functions() {
  return {
      {"raise_exception", function("raise_exception", raise_exception)},
      {"range", function("range", make_range)},
      {"dict", function("dict", [](Arguments& a) { return make_dict(a, /*is_namespace=*/false); })},
      {"namespace",
       function("namespace", [](Arguments& a) { return make_dict(a, /*is_namespace=*/true); })},
      {"strftime_now", function("strftime_now", strftime_now)},
      {"cycler", function("cycler", make_cycler)},
      {"joiner", function("joiner", make_joiner)},
  };
}

}  // namespace strata::text::jinja
