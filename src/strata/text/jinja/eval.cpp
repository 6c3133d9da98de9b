// Expressions: names, operators, calls, filters and tests.
#include "strata/text/jinja/interpreter.h"

namespace strata::text::jinja {

Value Interpreter::eval(const Expr& expr, Scope& scope) {
  constexpr int kMaxEvalDepth = 2000;  // some 1 KiB of stack each
  budget_.spend();
  if (++eval_depth_ > kMaxEvalDepth) throw Fault("maximum recursion depth exceeded");
  Value value = eval_inner(expr, scope);
  --eval_depth_;
  return value;
}

Value Interpreter::eval_inner(const Expr& expr, Scope& scope) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName: {
      const Value* value = scope.find(expr.name);
      return value != nullptr ? *value : Value::undefined("'" + expr.name + "' is undefined");
    }
    case ExprKind::kUnary:
      return eval_unary(expr, scope);
    case ExprKind::kBinary: {
      const Value left = eval(*expr.items[0], scope);
      return binary_operation(expr.name, left, eval(*expr.items[1], scope), budget_);
    }
    case ExprKind::kAnd: {
      Value left = eval(*expr.items[0], scope);
      return is_true(left) ? eval(*expr.items[1], scope) : left;
    }
    case ExprKind::kOr: {
      Value left = eval(*expr.items[0], scope);
      return is_true(left) ? left : eval(*expr.items[1], scope);
    }
    case ExprKind::kCompare:
      return eval_compare(expr, scope);
    case ExprKind::kConditional:
      if (is_true(eval(*expr.items[0], scope))) return eval(*expr.items[1], scope);
      if (expr.items[2]) return eval(*expr.items[2], scope);
      return Value::undefined("the inline if-expression evaluated to false and no else was given");
    case ExprKind::kAttribute:
      return get_attribute(eval(*expr.items[0], scope), expr.name);
    case ExprKind::kItem: {
      const Value object = eval(*expr.items[0], scope);
      return get_item(object, eval(*expr.items[1], scope));
    }
    case ExprKind::kSlice:
      return eval_slice(expr, scope);
    case ExprKind::kCall:
      return eval_call(expr, scope, nullptr);
    case ExprKind::kFilter:
      return eval_filter(expr, scope, nullptr);
    case ExprKind::kTest:
      return eval_test(expr, scope);
    default:
      return eval_collection(expr, scope);
  }
}

Value Interpreter::eval_unary(const Expr& expr, Scope& scope) {
  const Value value = eval(*expr.items[0], scope);
  if (expr.name == "not") return !is_true(value);
  if (value.is_undefined()) throw Fault(*value.as_undefined().why);
  if (!value.is_number()) {
    throw Fault("bad operand type for unary " + expr.name + ": '" + value.type_name() + "'");
  }
  if (value.is_float()) return expr.name == "-" ? -value.number() : value.number();
  if (value.is_big() && expr.name == "+") return value;
  return binary_operation(expr.name, 0, value, budget_);
}

Value Interpreter::eval_compare(const Expr& expr, Scope& scope) {
  Value left = eval(*expr.items[0], scope);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    const std::string& op = expr.operators[i];
    Value right = eval(*expr.items[i + 1], scope);
    bool holds;
    if (op == "==" || op == "!=") {
      holds = equals(left, right, budget_) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left, budget_) == (op == "in");
    } else {
      const int order = compare(left, right, budget_);
      holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::eval_collection(const Expr& expr, Scope& scope) {
  if (expr.kind == ExprKind::kConcat) {
    std::string text;
    for (const ExprPtr& item : expr.items) {
      text += to_text(eval(*item, scope), budget_);
      Budget::check_text(text.size());
    }
    return Value(std::move(text));
  }
  if (expr.kind == ExprKind::kDict) {
    auto dict = std::make_shared<Dict>();
    for (size_t i = 0; i < expr.items.size(); i += 2) {
      Value key = eval(*expr.items[i], scope);
      dict->set(std::move(key), eval(*expr.items[i + 1], scope));
    }
    return Value(std::move(dict));
  }
  Items items;
  items.reserve(expr.items.size());
  for (const ExprPtr& item : expr.items) items.push_back(eval(*item, scope));
  return Value::list(std::move(items), expr.kind == ExprKind::kTuple);
}

Value Interpreter::eval_slice(const Expr& expr, Scope& scope) {
  const auto part = [&](size_t i) { return expr.items[i] ? eval(*expr.items[i], scope) : Value(); };
  const Value object = eval(*expr.items[0], scope);
  const Value start = part(1), stop = part(2);
  return get_slice(object, start, stop, part(3));
}

Arguments Interpreter::eval_arguments(const CallArguments& source, Scope& scope) {
  Arguments arguments{{}, {}, budget_};
  for (const ExprPtr& item : source.positional) arguments.positional.push_back(eval(*item, scope));
  if (source.star) {
    for (Value& item : iterate(eval(*source.star, scope), budget_)) {
      arguments.positional.push_back(std::move(item));
    }
  }
  for (const auto& [name, item] : source.named)
    arguments.named.emplace_back(name, eval(*item, scope));
  if (source.double_star) {
    const Value dict = eval(*source.double_star, scope);
    if (!dict.is_dict()) throw Fault(std::string("** needs a dict, not ") + dict.type_name());
    for (const auto& [key, value] : dict.as_dict().entries) {
      if (!key.is_string()) throw Fault("keywords must be strings");
      arguments.named.emplace_back(key.text(), value);
    }
  }
  return arguments;
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  if (callee.is_undefined()) throw Fault(*callee.as_undefined().why);
  if (!callee.is_callable() || !callee.as_callable().call) {
    throw Fault(std::string("'") + callee.type_name() + "' object is not callable");
  }
  if (++depth_ > Budget::kMaxDepth) throw Fault("maximum recursion depth exceeded");
  Value result = callee.as_callable().call(arguments);
  --depth_;
  return result;
}

Value Interpreter::eval_call(const Expr& expr, Scope& scope, const Value* caller) {
  const Value callee = eval(*expr.items[0], scope);
  Arguments arguments = eval_arguments(expr.arguments, scope);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  line_ = expr.line;
  return call(callee, arguments);
}

Value Interpreter::eval_filter(const Expr& expr, Scope& scope, const Value* block_value) {
  const Expr* inner = expr.items[0].get();
  Value value = inner == nullptr ? *block_value
                : inner->kind == ExprKind::kFilter && block_value != nullptr
                    ? eval_filter(*inner, scope, block_value)
                    : eval(*inner, scope);
  Arguments arguments = eval_arguments(expr.arguments, scope);
  arguments.positional.insert(arguments.positional.begin(), std::move(value));
  line_ = expr.line;
  const Function filter = find_filter(expr.name);
  if (filter == nullptr) throw Fault(why_no_filter(expr.name));
  try {
    return filter(arguments);
  } catch (const Fault& fault) {
    throw Fault("filter " + expr.name + ": " + fault.what());
  }
}

Value Interpreter::eval_test(const Expr& expr, Scope& scope) {
  Value value = eval(*expr.items[0], scope);
  Arguments arguments = eval_arguments(expr.arguments, scope);
  arguments.positional.insert(arguments.positional.begin(), std::move(value));
  line_ = expr.line;
  const Function test = find_test(expr.name);
  if (test == nullptr) throw Fault("no test named '" + expr.name + "'");
  return test(arguments);
}

}  // namespace strata::text::jinja
