// Statements: output, branches, loops, assignments, macros.
#include "strata/text/jinja/interpreter.h"

#include <algorithm>
#include <functional>
#include <optional>

namespace strata::text::jinja {

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [key, value] : scope->variables) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Interpreter::Interpreter(std::vector<std::pair<std::string, Value>> variables) {
  Scope& globals = new_scope(nullptr);
  for (auto& [name, value] : global_functions()) globals.set(name, std::move(value));
  Scope& given = new_scope(&globals);
  for (auto& [name, value] : variables) given.set(name, std::move(value));
}

Interpreter::~Interpreter() {
  for (const auto& weak : namespaces_) {
    if (const auto dict = weak.lock()) {
      // Moved out first: destroying an entry may come back to this very namespace.
      const auto entries = std::exchange(dict->entries, {});
    }
  }
}

std::string Interpreter::run(const Program& program) {
  std::string out;
  root_ = &out;
  exec(program.body, new_scope(&scopes_.back()), out);
  return out;
}

Interpreter::Flow Interpreter::exec(const Body& body, Scope& scope, std::string& out) {
  if (++depth_ > Budget::kMaxDepth) throw Fault("maximum recursion depth exceeded");
  Flow flow = Flow::kNormal;
  for (const auto& stmt : body) {
    flow = exec(*stmt, scope, out);
    if (flow != Flow::kNormal) break;
  }
  --depth_;
  return flow;
}

Interpreter::Flow Interpreter::exec(const Stmt& stmt, Scope& scope, std::string& out) {
  budget_.spend();
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kData:
      out += stmt.text;
      break;
    case StmtKind::kPrint:
      out += to_text(eval(*stmt.value, scope), budget_);
      break;
    case StmtKind::kIf:
      for (const auto& [test, body] : stmt.branches) {
        if (!test || is_true(eval(*test, scope))) return exec(body, scope, out);
      }
      return Flow::kNormal;
    case StmtKind::kFor:
      return exec_for(stmt, scope, out);
    case StmtKind::kSet:
      assign(*stmt.target, eval(*stmt.value, scope), scope);
      break;
    case StmtKind::kSetBlock:
      exec_set_block(stmt, scope);
      break;
    case StmtKind::kMacro:
      scope.set(stmt.text, make_macro(stmt, scope, stmt.text));
      break;
    case StmtKind::kCallBlock:
      exec_call_block(stmt, scope, out);
      break;
    case StmtKind::kFilterBlock: {
      std::string inner;
      exec(stmt.body, new_scope(&scope), inner);
      const Value text(std::move(inner));
      const Value filtered = eval_filter(*stmt.value, scope, &text);
      if (!filtered.is_string()) {
        throw Fault(std::string("filter block: found ") + filtered.type_name() + ", expected str");
      }
      out += to_text(filtered, budget_);
      break;
    }
    case StmtKind::kWith: {
      Scope& inner = new_scope(&scope);
      for (const auto& [target, value] : stmt.assignments) {
        inner.set(target->name, eval(*value, scope));
      }
      return exec(stmt.body, inner, out);
    }
    case StmtKind::kGeneration:
      exec_generation(stmt, scope, out);
      break;
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  Budget::check_text(out.size());
  return Flow::kNormal;
}

void Interpreter::exec_set_block(const Stmt& stmt, Scope& scope) {
  std::string inner;
  exec(stmt.body, new_scope(&scope), inner);
  Value value(std::move(inner));
  if (stmt.value) value = eval_filter(*stmt.value, scope, &value);
  assign(*stmt.target, std::move(value), scope);
}

void Interpreter::exec_call_block(const Stmt& stmt, Scope& scope, std::string& out) {
  const Value caller = make_macro(stmt, scope, "caller");
  out += to_text(eval_call(*stmt.value, scope, &caller), budget_);
}

// As transformers tracks it: the block begins where the finished output ends (also inside a macro,
// whose own text is not output yet).
void Interpreter::exec_generation(const Stmt& stmt, Scope& scope, std::string& out) {
  std::string inner;
  exec(stmt.body, new_scope(&scope), inner);
  generation_.emplace_back(root_->size(), root_->size() + inner.size());
  out += inner;
}

// The items and position of a running for loop, behind the variable `loop`. Takes an item when its
// turn comes or the template looks ahead, as Jinja: until then the filter of the loop and a shared
// generator can change.
struct Interpreter::Loop {
  std::function<bool(Items&)> take;  // adds the next item; false at the end
  bool is_taking = false;            // the loop's filter looks at it, and may know this loop
  Items items;                       // so far
  size_t index = 0;
  int depth = 0;
  Value last_changed = Value::undefined("no value yet");

  bool has(size_t i) {
    while (items.size() <= i) {
      if (std::exchange(is_taking, true)) throw Fault("generator already executing");
      const bool is_end = !take(items);
      is_taking = false;
      if (is_end) return false;
    }
    return true;
  }
  // To the next item; a filter that knows the loop sees the position before.
  bool advance() {
    const bool is_left = has(index + 1);
    if (is_left) ++index;
    return is_left;
  }
  size_t length() {
    while (has(items.size())) continue;
    return items.size();
  }
  Value attribute(const std::shared_ptr<Loop>& self, std::string_view name);
};

Value Interpreter::Loop::attribute(const std::shared_ptr<Loop>& self, std::string_view name) {
  const auto method = [](const char* method_name, std::function<Value(Arguments&)> body) {
    return Value(std::make_shared<const Callable>(Callable{method_name, std::move(body), nullptr}));
  };
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return length() - index;
  if (name == "revindex0") return length() - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return !has(index + 1);
  if (name == "length") return length();
  if (name == "depth") return depth + 1;
  if (name == "depth0") return depth;
  if (name == "previtem") {
    return index > 0 ? items[index - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return has(index + 1) ? items[index + 1] : Value::undefined("there is no next item");
  }
  const std::weak_ptr<Loop> weak = self;  // methods must not keep the loop alive that keeps them
  if (name == "cycle") {
    return method("cycle", [weak](Arguments& arguments) {
      const auto self = weak.lock();
      if (!self) throw Fault("the loop is over");
      if (arguments.positional.empty()) throw Fault("no items for cycling given");
      return arguments.positional[self->index % arguments.positional.size()];
    });
  }
  if (name == "changed") {
    return method("changed", [weak](Arguments& arguments) -> Value {
      const auto self = weak.lock();
      if (!self) throw Fault("the loop is over");
      Value now = Value::list(arguments.positional, /*is_tuple=*/true);
      if (equals(now, self->last_changed, arguments.budget)) return false;
      self->last_changed = std::move(now);
      return true;
    });
  }
  return Value::undefined("'loop' has no attribute '" + std::string(name) + "'");
}

Interpreter::Flow Interpreter::exec_for(const Stmt& stmt, Scope& scope, std::string& out) {
  return run_loop(stmt, eval(*stmt.value, scope), scope, out, 0);
}

// Gives the items of a value one by one, then nothing: those of a generator are taken from it.
static std::function<std::optional<Value>()> item_source(const Value& value, Budget& budget) {
  const bool is_shared = value.is_generator();
  const Value source = is_shared ? value : Value::generator(iterate(value, budget));
  return [source, is_shared, &budget]() -> std::optional<Value> {
    Generator& from = source.as_generator();
    if (from.num_taken == from.items.size()) return std::nullopt;
    if (is_shared) budget.spend();
    return from.items[from.num_taken++];
  };
}

bool Interpreter::passes(const Stmt& stmt, const Value& item, Scope& scope) {
  const ScopeMark mark(*this);
  Scope& inner = new_scope(&scope);
  assign(*stmt.target, item, inner);
  return is_true(eval(*stmt.filter, inner));
}

Interpreter::Flow Interpreter::run_loop(const Stmt& stmt, const Value& iterable, Scope& scope,
                                        std::string& out, int depth) {
  auto loop = std::make_shared<Loop>();
  loop->depth = depth;
  auto next = item_source(iterable, budget_);
  loop->take = [&](Items& items) {
    while (std::optional<Value> item = next()) {
      if (!stmt.filter || passes(stmt, *item, scope)) {
        items.push_back(*std::move(item));
        return true;
      }
    }
    return false;
  };
  if (!loop->has(0)) return exec(stmt.other, new_scope(&scope), out);
  const Value variable = loop_variable(stmt, loop, scope);
  for (bool is_left = true; is_left; is_left = loop->advance()) {
    const ScopeMark mark(*this);
    Scope& inner = new_scope(&scope);
    inner.set("loop", variable);
    assign(*stmt.target, loop->items[loop->index], inner);
    if (exec(stmt.body, inner, out) == Flow::kBreak) break;
  }
  return Flow::kNormal;
}

// Holds the loop by a weak reference, so that the loop does not keep itself alive: where templates
// keep it, it can still be called when it is over, but has no position any more.
Value Interpreter::loop_variable(const Stmt& stmt, const std::shared_ptr<Loop>& loop,
                                 Scope& scope) {
  auto variable = std::make_shared<Callable>();
  variable->name = "loop";
  variable->type_name = "LoopContext";
  variable->attribute = [weak = std::weak_ptr<Loop>(loop)](std::string_view name) -> Value {
    const auto self = weak.lock();
    if (!self) throw Fault("the loop is over");
    return self->attribute(self, name);
  };
  if (stmt.is_recursive) {
    ++num_captures_;
    variable->call = [this, &stmt, &scope, depth = loop->depth](Arguments& arguments) -> Value {
      std::string inner;
      run_loop(stmt, arguments.require(0, "iterable"), scope, inner, depth + 1);
      return Value(std::move(inner));
    };
  } else {
    variable->call = [](Arguments&) -> Value { throw Fault("the loop is not marked recursive"); };
  }
  return Value(std::shared_ptr<const Callable>(std::move(variable)));
}

Value Interpreter::make_macro(const Stmt& stmt, Scope& scope, std::string name) {
  ++num_captures_;
  auto macro = std::make_shared<Callable>();
  macro->name = name;
  macro->type_name = "Macro";
  macro->call = [this, &stmt, &scope, name](Arguments& arguments) {
    return call_macro(stmt, scope, name, arguments);
  };
  macro->attribute = [name](std::string_view attribute) -> Value {
    if (attribute == "name") return name;
    return Value::undefined("'Macro' has no attribute '" + std::string(attribute) + "'");
  };
  return Value(std::shared_ptr<const Callable>(std::move(macro)));
}

Value Interpreter::call_macro(const Stmt& stmt, Scope& scope, const std::string& name,
                              Arguments& arguments) {
  const ScopeMark mark(*this);
  Scope& inner = new_scope(&scope);
  const size_t count = stmt.parameters.size();
  if (arguments.positional.size() > count && !stmt.takes_varargs) {
    throw Fault("macro '" + name + "' takes not more than " + std::to_string(count) +
                " argument(s)");
  }
  auto others = std::make_shared<Dict>();
  for (const auto& [key, value] : arguments.named) {
    const bool is_parameter = std::any_of(stmt.parameters.begin(), stmt.parameters.end(),
                                          [&](const Parameter& p) { return p.name == key; });
    if (is_parameter) continue;
    if (key == "caller") {
      inner.set("caller", value);
    } else if (stmt.takes_kwargs) {
      others->set(key, value);
    } else {
      throw Fault("macro '" + name + "' takes no keyword argument '" + key + "'");
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = stmt.parameters[i];
    const Value* given = arguments.find(i, parameter.name);
    inner.set(parameter.name,
              given != nullptr ? *given
              : parameter.fallback
                  ? eval(*parameter.fallback, inner)
                  : Value::undefined("parameter '" + parameter.name + "' was not provided"));
  }
  if (stmt.takes_varargs) {
    const size_t used = std::min(count, arguments.positional.size());
    inner.set("varargs",
              Value::list(Items(arguments.positional.begin() + static_cast<std::ptrdiff_t>(used),
                                arguments.positional.end()),
                          /*is_tuple=*/true));
  }
  if (stmt.takes_kwargs) inner.set("kwargs", Value(std::move(others)));
  std::string out;
  exec(stmt.body, inner, out);
  return Value(std::move(out));
}

void Interpreter::assign(const Expr& target, Value value, Scope& scope) {
  if (target.kind == ExprKind::kName) return scope.set(target.name, std::move(value));
  if (target.kind == ExprKind::kAttribute) {
    const Value* object = scope.find(target.items[0]->name);
    if (object == nullptr || !object->is_dict() || !object->as_dict().is_namespace) {
      throw Fault("cannot assign attribute '" + target.name + "' on a non-namespace object");
    }
    if (target.name.starts_with('_')) {
      throw Fault("a namespace cannot store the underscore-prefixed attribute '" + target.name +
                  "'");
    }
    if (value.is_dict() || value.is_list() || value.is_generator() || value.is_callable()) {
      namespaces_.push_back(object->shared_dict());
    }
    return object->as_dict().set(target.name, std::move(value));
  }
  const Items items = iterate(value, budget_);
  if (items.size() != target.items.size()) {
    throw Fault("cannot unpack " + std::to_string(items.size()) + " values into " +
                std::to_string(target.items.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) assign(*target.items[i], items[i], scope);
}

}  // namespace strata::text::jinja
