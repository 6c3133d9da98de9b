// The filters over lists and mappings.
#include <algorithm>

#include "strata/text/jinja/filters.h"
#include "strata/text/jinja/marked.h"
#include "strata/text/jinja/strings.h"

namespace strata::text::jinja {
namespace {

// What an item is ordered by: its attribute if asked for, without case unless asked for.
Value sort_key(const Value& item, const Value& attribute, bool case_sensitive, Budget& budget,
               const Value& fallback = Value::undefined("")) {
  Value key = attribute.is_none() ? item : attribute_of(item, attribute, budget);
  if (key.is_undefined() && !fallback.is_undefined()) key = fallback;
  return key.is_string() && !case_sensitive ? Value(lower_text(key.text())) : key;
}

Items sorted(Items items, const Value& attribute, bool case_sensitive, bool reverse, Budget& budget,
             const Value& fallback = Value::undefined("")) {
  std::vector<std::pair<Value, Value>> keyed;
  // "a,b" orders by several attributes.
  Items attributes = {attribute};
  if (attribute.is_string() && attribute.text().find(',') != std::string::npos) {
    attributes.clear();
    for (std::string& name :
         split_text(attribute.text(), ",", /*limit=*/-1, /*from_right=*/false)) {
      attributes.emplace_back(std::move(name));
    }
  }
  for (Value& item : items) {
    Items keys;
    for (const Value& name : attributes) {
      keys.push_back(sort_key(item, name, case_sensitive, budget, fallback));
    }
    keyed.emplace_back(Value::list(std::move(keys)), std::move(item));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return reverse ? compare(y.first, x.first, budget) < 0 : compare(x.first, y.first, budget) < 0;
  });
  Items out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value sort_filter(Arguments& a) {
  return Value::list(sorted(iterate(subject(a), a.budget), a.get(3, "attribute", Value()),
                            a.get_bool(2, "case_sensitive", false), a.get_bool(1, "reverse", false),
                            a.budget));
}

Value dictsort_filter(Arguments& a) {
  if (!subject(a).is_dict())
    throw Fault(std::string("expected a dict, not ") + subject(a).type_name());
  const std::string by = a.get_text(2, "by", "key");
  if (by != "key" && by != "value") throw Fault("you can only sort by either \"key\" or \"value\"");
  Items pairs;
  for (const auto& [key, value] : subject(a).as_dict().entries) {
    pairs.push_back(Value::list({key, value}, /*is_tuple=*/true));
  }
  return Value::list(sorted(std::move(pairs), by == "key" ? 0 : 1,
                            a.get_bool(1, "case_sensitive", false), a.get_bool(3, "reverse", false),
                            a.budget));
}

Value unique_filter(Arguments& a) {
  Items out, seen;
  for (Value& item : iterate(subject(a), a.budget)) {
    Value key = sort_key(item, a.get(2, "attribute", Value()),
                         a.get_bool(1, "case_sensitive", false), a.budget);
    const bool is_known = std::any_of(
        seen.begin(), seen.end(), [&](const Value& other) { return equals(key, other, a.budget); });
    if (is_known) continue;
    seen.push_back(std::move(key));
    out.push_back(std::move(item));
  }
  return Value::generator(std::move(out));
}

Value extreme_filter(Arguments& a, int sign) {
  const Items items = iterate(subject(a), a.budget);
  if (items.empty()) return Value::undefined("no aggregated item, sequence was empty");
  const Value attribute = a.get(2, "attribute", Value());
  const bool case_sensitive = a.get_bool(1, "case_sensitive", false);
  const Value* best = &items[0];
  for (const Value& item : items) {
    const int order = compare(sort_key(item, attribute, case_sensitive, a.budget),
                              sort_key(*best, attribute, case_sensitive, a.budget), a.budget);
    if (order * sign > 0) best = &item;
  }
  return *best;
}

Value sum_filter(Arguments& a) {
  const Value attribute = a.get(1, "attribute", Value());
  Value sum = a.get(2, "start", 0);
  for (const Value& item : iterate(subject(a), a.budget)) {
    sum = binary_operation(
        "+", sum, attribute.is_none() ? item : attribute_of(item, attribute, a.budget), a.budget);
  }
  return sum;
}

Value join_filter(Arguments& a) {
  const std::string separator = to_text(a.get(1, "d", ""), a.budget);
  const Value attribute = a.get(2, "attribute", Value());
  std::string out;
  bool is_first = true;
  for (const Value& item : iterate(subject(a), a.budget)) {
    if (!std::exchange(is_first, false)) out += separator;
    out += to_text(attribute.is_none() ? item : attribute_of(item, attribute, a.budget), a.budget);
    Budget::check_text(out.size());
  }
  return Value(std::move(out));
}

Value first_filter(Arguments& a) {
  if (subject(a).is_generator()) {  // it keeps the others
    Generator& from = subject(a).as_generator();
    if (from.num_taken < from.items.size()) return from.items[from.num_taken++];
  }
  const Items items = iterate(subject(a), a.budget);
  return items.empty() ? Value::undefined("no first item, sequence was empty") : items.front();
}

Value last_filter(Arguments& a) {
  if (subject(a).is_generator()) {
    throw Fault("'generator' object is not reversible; write | list before it");
  }
  const Items items = iterate(subject(a), a.budget);
  if (items.empty()) return Value::undefined("no last item, sequence was empty");
  return marked_as(subject(a), items.back());
}

Value reverse_filter(Arguments& a) {
  if (!subject(a).is_string()) {
    Items items = iterate(subject(a), a.budget);
    std::reverse(items.begin(), items.end());
    // Jinja makes a list of what has no last item to begin with.
    return subject(a).is_generator() ? Value::list(std::move(items))
                                     : Value::generator(std::move(items));
  }
  return get_slice(subject(a), Value(), Value(), -1);
}

Value batch_filter(Arguments& a) {
  const int64_t size = a.get_int(1, "linecount", 0);
  if (size < 1) throw Fault("linecount must be positive");
  const Value fill = a.get(2, "fill_with", Value());
  Items out, row;
  for (Value& item : iterate(subject(a), a.budget)) {
    row.push_back(std::move(item));
    if (static_cast<int64_t>(row.size()) == size)
      out.push_back(Value::list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    a.budget.spend(fill.is_none() ? 0 : size);
    while (!fill.is_none() && static_cast<int64_t>(row.size()) < size) row.push_back(fill);
    out.push_back(Value::list(std::move(row)));
  }
  return Value::generator(std::move(out));
}

Value slice_filter(Arguments& a) {
  const int64_t count = a.get_int(1, "slices", 0);
  if (count < 1) throw Fault("slices must be positive");
  const Value fill = a.get(2, "fill_with", Value());
  const Items items = iterate(subject(a), a.budget);
  a.budget.spend(count);
  const int64_t size = static_cast<int64_t>(items.size()) / count;
  const int64_t num_longer = static_cast<int64_t>(items.size()) % count;
  Items out;
  auto next = items.begin();
  for (int64_t i = 0; i < count; ++i) {
    const auto end = next + size + (i < num_longer);
    Items slice(next, end);
    if (!fill.is_none() && i >= num_longer) slice.push_back(fill);
    out.push_back(Value::list(std::move(slice)));
    next = end;
  }
  return Value::generator(std::move(out));
}

Value groupby_filter(Arguments& a) {
  const Value& attribute = a.require(1, "attribute");
  const Value fallback = a.get(2, "default", Value());
  const Value missing = fallback.is_none() ? Value::undefined("") : fallback;
  const bool case_sensitive = a.get_bool(3, "case_sensitive", false);
  Items out, group;
  Value group_key;
  const auto close = [&] {
    if (group.empty()) return;
    Value name = sort_key(group.front(), attribute, /*case_sensitive=*/true, a.budget, missing);
    List pair{.items = {std::move(name), Value::list(std::exchange(group, {}))},
              .is_tuple = true,
              .is_group = true};
    out.push_back(Value(std::make_shared<const List>(std::move(pair))));
  };
  for (Value& item : sorted(iterate(subject(a), a.budget), attribute, case_sensitive,
                            /*reverse=*/false, a.budget, missing)) {
    Value key = sort_key(item, attribute, case_sensitive, a.budget, missing);
    if (!group.empty() && !equals(key, group_key, a.budget)) close();
    group_key = std::move(key);
    group.push_back(std::move(item));
  }
  close();
  return Value::list(std::move(out));
}

}  // namespace

const FilterTable& item_filters() {
  const Function length = [](Arguments& a) -> Value { return length_of(subject(a)); };
  static const FilterTable table = {
      {"batch", batch_filter},
      {"count", length},
      {"dictsort", dictsort_filter},
      {"first", first_filter},
      {"groupby", groupby_filter},
      {"join", join_filter},
      {"last", last_filter},
      {"length", length},
      {"list", [](Arguments& a) { return Value::list(iterate(subject(a), a.budget)); }},
      {"max", [](Arguments& a) { return extreme_filter(a, 1); }},
      {"min", [](Arguments& a) { return extreme_filter(a, -1); }},
      {"reverse", reverse_filter},
      {"slice", slice_filter},
      {"sort", sort_filter},
      {"sum", sum_filter},
      {"unique", unique_filter},
  };
  return table;
}

}  // namespace strata::text::jinja
