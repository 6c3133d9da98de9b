// Methods of dict, list and tuple, and finding a method.
#include <algorithm>

#include "strata/text/jinja/marked.h"
#include "strata/text/jinja/methods.h"

namespace strata::text::jinja {
namespace {

const Dict& self_dict(Arguments& a) { return a.positional[0].as_dict(); }
const List& self_list(Arguments& a) { return a.positional[0].as_list(); }

Value dict_part(Arguments& a, bool keys, bool values) {
  Items items;
  for (const auto& [key, value] : self_dict(a).entries) {
    items.push_back(keys && values ? Value::list({key, value}, /*is_tuple=*/true)
                    : keys         ? key
                                   : value);
  }
  a.budget.spend(static_cast<int64_t>(items.size()));
  return Value::list(std::move(items));
}

const MethodTable& dict_methods() {
  static const MethodTable table = {
      {"get",
       [](Arguments& a) {
         const Value* found = self_dict(a).find(a.require(1, "key"));
         return found != nullptr ? *found : a.get(2, "default", Value());
       }},
      {"items", [](Arguments& a) { return dict_part(a, /*keys=*/true, /*values=*/true); }},
      {"keys", [](Arguments& a) { return dict_part(a, /*keys=*/true, /*values=*/false); }},
      {"values", [](Arguments& a) { return dict_part(a, /*keys=*/false, /*values=*/true); }},
      {"copy", [](Arguments& a) { return Value(std::make_shared<Dict>(self_dict(a))); }},
  };
  return table;
}

const MethodTable& list_methods() {
  static const MethodTable table = {
      {"index",
       [](Arguments& a) -> Value {
         const Items& items = self_list(a).items;
         const auto size = static_cast<int64_t>(items.size());
         const auto place = [&](size_t index, const char* name, int64_t fallback) {
           const int64_t at = a.get_int(index, name, fallback);
           return static_cast<size_t>(std::clamp<int64_t>(at < 0 ? at + size : at, 0, size));
         };
         for (size_t i = place(2, "start", 0); i < place(3, "stop", size); ++i) {
           if (equals(items[i], a.require(1, "value"), a.budget)) return i;
         }
         throw Fault(to_repr(a.require(1, "value"), a.budget) + " is not in list");
       }},
      {"count",
       [](Arguments& a) -> Value {
         int64_t count = 0;
         for (const Value& item : self_list(a).items) {
           count += equals(item, a.require(1, "value"), a.budget);
         }
         return count;
       }},
      {"copy", [](Arguments& a) { return Value::list(self_list(a).items); }},
  };
  return table;
}

bool changes_object(const Value& object, std::string_view name) {
  static constexpr std::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                               "pop",    "remove", "reverse", "sort"};
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (object.is_list())
    return std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
  return object.is_dict() && std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
}

}  // namespace

Value find_method(const Value& object, std::string_view name) {
  static const MethodTable none;
  const MethodTable& table = object.is_string() ? text_methods()
                             : object.is_dict() ? dict_methods()
                             : object.is_list() ? list_methods()
                                                : none;
  if (const auto it = table.find(name); it != table.end()) {
    const Function body = it->second;
    Callable method{std::string(name),
                    [object, body, method_name = std::string(name)](Arguments& arguments) {
                      Arguments all{{object}, arguments.named, arguments.budget};
                      all.positional.insert(all.positional.end(), arguments.positional.begin(),
                                            arguments.positional.end());
                      try {
                        return marked_as(object, body(all));
                      } catch (const Fault& fault) {
                        throw Fault(method_name + "(): " + fault.what());
                      }
                    },
                    nullptr, "method"};
    return Value(std::make_shared<const Callable>(std::move(method)));
  }
  const std::string type = object.type_name();
  if (changes_object(object, name)) {
    auto refuse = [why = "access to attribute '" + std::string(name) + "' of '" + type +
                         "' object is unsafe."](Arguments&) -> Value { throw Fault(why); };
    return object.is_dict() && object.as_dict().find(name) != nullptr
               ? Value::undefined("")
               : Value(std::make_shared<const Callable>(
                     Callable{std::string(name), refuse, nullptr}));
  }
  return Value::undefined("'" + type + " object' has no attribute '" + std::string(name) + "'");
}

}  // namespace strata::text::jinja
