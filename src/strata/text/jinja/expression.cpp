// Expressions of the template language; follows jinja2/parser.py.
#include "strata/text/jinja/parser.h"

#include <algorithm>

namespace strata::text::jinja {

void ExpressionParser::fail(const std::string& what) const {
  throw Fault("line " + std::to_string(current().line) + ": " + what);
}

namespace {
std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kBlockEnd:
      return "the end of the tag";
    case TokenKind::kPrintEnd:
      return "the end of the print statement";
    default:
      return "'" + token.text + "'";
  }
}
}  // namespace

void ExpressionParser::expect_operator(std::string_view op) {
  if (!skip_operator(op))
    fail("found " + describe(current()) + ", expected '" + std::string(op) + "'");
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name))
    fail("found " + describe(current()) + ", expected '" + std::string(name) + "'");
}

std::string ExpressionParser::take_name() {
  if (current().kind != TokenKind::kName)
    fail("found " + describe(current()) + ", expected a name");
  return take().text;
}

ExprPtr ExpressionParser::make(ExprKind kind, std::string name) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = current().line;
  expr->name = std::move(name);
  return expr;
}

ExprPtr ExpressionParser::settle(ExprPtr expr) const {
  const auto include = [&](const ExprPtr& child) {
    if (child) expr->depth = std::max(expr->depth, child->depth + 1);
  };
  for (const ExprPtr& item : expr->items) include(item);
  for (const ExprPtr& item : expr->arguments.positional) include(item);
  for (const auto& [name, item] : expr->arguments.named) include(item);
  include(expr->arguments.star);
  include(expr->arguments.double_star);
  if (expr->depth > 500) fail("an expression is more than 500 operations deep");
  return expr;
}

ExprPtr ExpressionParser::make_binary(ExprKind kind, std::string name, ExprPtr left,
                                      ExprPtr right) const {
  ExprPtr expr = make(kind, std::move(name));
  expr->items.push_back(std::move(left));
  expr->items.push_back(std::move(right));
  return settle(std::move(expr));
}

ExprPtr ExpressionParser::parse_expression(bool allows_conditional) {
  const Nesting nesting(*this);
  ExprPtr value = parse_or();
  while (allows_conditional && is_name("if")) {
    ExprPtr expr = make(ExprKind::kConditional);
    take();
    expr->items.push_back(parse_or());
    expr->items.push_back(std::move(value));
    expr->items.push_back(skip_name("else") ? parse_expression() : nullptr);
    value = settle(std::move(expr));
  }
  return value;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (skip_name("or")) left = make_binary(ExprKind::kOr, "or", std::move(left), parse_and());
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (skip_name("and")) left = make_binary(ExprKind::kAnd, "and", std::move(left), parse_not());
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  ExprPtr expr = make(ExprKind::kUnary, "not");
  take();
  expr->items.push_back(parse_not());
  return settle(std::move(expr));
}

ExprPtr ExpressionParser::parse_compare() {
  ExprPtr left = parse_sum();
  ExprPtr expr;
  while (true) {
    std::string op;
    for (const char* candidate : {"==", "!=", "<", "<=", ">", ">="}) {
      if (is_operator(candidate)) op = candidate;
    }
    const bool is_not_in =
        is_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in";
    if (is_name("in")) op = "in";
    if (is_not_in) {
      op = "not in";
      take();
    }
    if (op.empty()) break;
    if (!expr) {
      expr = make(ExprKind::kCompare);
      expr->items.push_back(std::move(left));
    }
    take();
    expr->operators.push_back(op);
    expr->items.push_back(parse_sum());
  }
  return expr ? settle(std::move(expr)) : std::move(left);
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (is_operator("+") || is_operator("-")) {
    const std::string op = take().text;
    left = make_binary(ExprKind::kBinary, op, std::move(left), parse_concat());
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr first = parse_product();
  if (!is_operator("~")) return first;
  ExprPtr expr = make(ExprKind::kConcat);
  expr->items.push_back(std::move(first));
  while (skip_operator("~")) expr->items.push_back(parse_product());
  return settle(std::move(expr));
}

ExprPtr ExpressionParser::parse_product() {
  ExprPtr left = parse_power();
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    const std::string op = take().text;
    left = make_binary(ExprKind::kBinary, op, std::move(left), parse_power());
  }
  return left;
}

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (skip_operator("**")) {
    left = make_binary(ExprKind::kBinary, "**", std::move(left), parse_unary(true));
  }
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  ExprPtr value;
  if (is_operator("-") || is_operator("+")) {
    value = make(ExprKind::kUnary, take().text);
    value->items.push_back(parse_unary(false));
    value = settle(std::move(value));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filter_chain(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::parse_primary() {
  ExprPtr expr = make(ExprKind::kConstant);
  if (current().kind == TokenKind::kName) {
    const std::string name = take().text;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      expr->constant = name == "true" || name == "True";
    } else if (name != "none" && name != "None") {
      expr->kind = ExprKind::kName;
      expr->name = name;
      sees_varargs_ |= name == "varargs";
      sees_kwargs_ |= name == "kwargs";
    }
    return expr;
  }
  if (current().kind == TokenKind::kString) {
    std::string text;
    while (current().kind == TokenKind::kString) text += take().text;
    expr->constant = Value(std::move(text));
    return expr;
  }
  if (current().kind == TokenKind::kInteger)
    return expr->constant = take().integer, std::move(expr);
  if (current().kind == TokenKind::kFloat) return expr->constant = take().number, std::move(expr);
  if (skip_operator("(")) {
    ExprPtr inner = parse_tuple(true, /*in_parentheses=*/true);
    expect_operator(")");
    return inner;
  }
  if (is_operator("[")) return parse_list();
  if (is_operator("{")) return parse_dict();
  fail("unexpected " + describe(current()));
}

ExprPtr ExpressionParser::parse_tuple(bool allows_conditional, bool in_parentheses) {
  ExprPtr tuple = make(ExprKind::kTuple);
  bool has_comma = false;
  while (true) {
    const bool is_end = current().kind == TokenKind::kBlockEnd ||
                        current().kind == TokenKind::kPrintEnd || is_operator(")") ||
                        is_name("in") || is_name("recursive");
    if (is_end) break;
    tuple->items.push_back(parse_expression(allows_conditional));
    if (!skip_operator(",")) break;
    has_comma = true;
  }
  if (tuple->items.empty() && !in_parentheses) {
    fail("found " + describe(current()) + ", expected an expression");
  }
  if (!has_comma && tuple->items.size() == 1) return std::move(tuple->items[0]);
  return settle(std::move(tuple));
}

ExprPtr ExpressionParser::parse_target(bool allows_attribute) {
  const Nesting nesting(*this);
  ExprPtr tuple = make(ExprKind::kTuple);
  bool has_comma = false;
  do {
    if (has_comma && (is_name("in") || is_operator("=") || is_operator(")"))) break;
    if (skip_operator("(")) {
      tuple->items.push_back(parse_target(allows_attribute));
      expect_operator(")");
      continue;
    }
    ExprPtr target = make(ExprKind::kName, take_name());
    for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
      if (target->name == constant) fail("can't assign to '" + target->name + "'");
    }
    if (allows_attribute && skip_operator(".")) {
      ExprPtr attribute = make(ExprKind::kAttribute, take_name());
      attribute->items.push_back(std::move(target));
      target = std::move(attribute);
    }
    tuple->items.push_back(std::move(target));
  } while (is_operator(",") && (take(), has_comma = true));
  return has_comma ? std::move(tuple) : std::move(tuple->items[0]);
}

ExprPtr ExpressionParser::parse_list() {
  ExprPtr list = make(ExprKind::kList);
  expect_operator("[");
  while (!is_operator("]")) {
    list->items.push_back(parse_expression());
    if (!is_operator("]")) expect_operator(",");
  }
  take();
  return settle(std::move(list));
}

ExprPtr ExpressionParser::parse_dict() {
  ExprPtr dict = make(ExprKind::kDict);
  expect_operator("{");
  while (!is_operator("}")) {
    dict->items.push_back(parse_expression());
    expect_operator(":");
    dict->items.push_back(parse_expression());
    if (!is_operator("}")) expect_operator(",");
  }
  take();
  return settle(std::move(dict));
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  ExprPtr call = make(ExprKind::kCall);
  call->items.push_back(std::move(callee));
  call->arguments = parse_arguments();
  return settle(std::move(call));
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr value) {
  while (true) {
    if (is_operator(".") || is_operator("[")) {
      value = parse_subscript(std::move(value));
    } else if (is_operator("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr value) {
  if (skip_operator(".")) {
    if (current().kind == TokenKind::kInteger) {
      ExprPtr index = make(ExprKind::kConstant);
      index->constant = take().integer;
      return make_binary(ExprKind::kItem, "", std::move(value), std::move(index));
    }
    ExprPtr attribute = make(ExprKind::kAttribute, take_name());
    attribute->items.push_back(std::move(value));
    return settle(std::move(attribute));
  }
  expect_operator("[");
  ExprPtr start = is_operator(":") ? nullptr : parse_expression();
  if (skip_operator("]"))
    return make_binary(ExprKind::kItem, "", std::move(value), std::move(start));
  expect_operator(":");
  ExprPtr slice = make(ExprKind::kSlice);
  slice->items.push_back(std::move(value));
  slice->items.push_back(std::move(start));
  slice->items.push_back(is_operator(":") || is_operator("]") ? nullptr : parse_expression());
  slice->items.push_back(skip_operator(":") && !is_operator("]") ? parse_expression() : nullptr);
  expect_operator("]");
  return settle(std::move(slice));
}

CallArguments ExpressionParser::parse_arguments() {
  CallArguments arguments;
  expect_operator("(");
  while (!is_operator(")")) {
    if (skip_operator("**")) {
      arguments.double_star = parse_expression();
    } else if (skip_operator("*")) {
      arguments.star = parse_expression();
    } else if (current().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator &&
               ahead().text == "=") {
      std::string name = take().text;
      take();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!arguments.named.empty()) fail("a positional argument follows keyword arguments");
      arguments.positional.push_back(parse_expression());
    }
    if (!is_operator(")")) expect_operator(",");
  }
  take();
  return arguments;
}

ExprPtr ExpressionParser::parse_filter_chain(ExprPtr value) {
  while (true) {
    if (skip_operator("|")) {
      value = parse_filter(std::move(value));
    } else if (is_name("is")) {
      value = parse_test(std::move(value));
    } else if (is_operator("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::parse_filters(ExprPtr value, bool has_first_pipe) {
  if (!has_first_pipe) value = parse_filter(std::move(value));
  while (skip_operator("|")) value = parse_filter(std::move(value));
  return value;
}

ExprPtr ExpressionParser::parse_filter(ExprPtr value) {
  ExprPtr filter = make(ExprKind::kFilter, take_name());
  filter->items.push_back(std::move(value));
  if (is_operator("(")) filter->arguments = parse_arguments();
  return settle(std::move(filter));
}

ExprPtr ExpressionParser::parse_test(ExprPtr value) {
  expect_name("is");
  const bool is_negated = skip_name("not");
  ExprPtr test = make(ExprKind::kTest, take_name());
  test->items.push_back(std::move(value));
  const TokenKind kind = current().kind;
  const bool is_argument =
      (kind == TokenKind::kName && !is_name("else") && !is_name("or") && !is_name("and")) ||
      kind == TokenKind::kString || kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
      is_operator("[") || is_operator("{");
  if (is_operator("(")) {
    test->arguments = parse_arguments();
  } else if (is_argument) {
    if (is_name("is")) fail("tests cannot be chained with 'is'");
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  test = settle(std::move(test));
  if (!is_negated) return test;
  ExprPtr negation = make(ExprKind::kUnary, "not");
  negation->items.push_back(std::move(test));
  return settle(std::move(negation));
}

}  // namespace strata::text::jinja
