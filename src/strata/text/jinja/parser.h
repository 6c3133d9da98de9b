// Recursive-descent parser of the template language; see ast.h for its result.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "strata/text/jinja/ast.h"
#include "strata/text/jinja/lexer.h"

namespace strata::text::jinja {

// Expressions, in Jinja's order of precedence.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  ExprPtr parse_expression(bool allows_conditional = true);
  // One expression, or a tuple when commas follow.
  ExprPtr parse_tuple(bool allows_conditional = true, bool in_parentheses = false);
  // Names, tuples of names, and (if allowed) namespace attributes.
  ExprPtr parse_target(bool allows_attribute);
  // Filters after a value; `value` is null in a filter block.
  ExprPtr parse_filters(ExprPtr value, bool has_first_pipe);
  CallArguments parse_arguments();

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_name(std::string_view name) const {
    return current().kind == TokenKind::kName && current().text == name;
  }
  bool is_operator(std::string_view op) const {
    return current().kind == TokenKind::kOperator && current().text == op;
  }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }
  bool skip_operator(std::string_view op) { return is_operator(op) && (take(), true); }
  void expect_operator(std::string_view op);
  void expect_name(std::string_view name);
  std::string take_name();
  [[noreturn]] void fail(const std::string& what) const;
  ExprPtr make(ExprKind kind, std::string name = "") const;
  // Notes the depth of a finished expression and bounds it.
  ExprPtr settle(ExprPtr expr) const;

  bool sees_varargs_ = false, sees_kwargs_ = false;  // names met since these were last reset

  // Guards the C++ stack against deeply nested sources.
  struct Nesting {
    explicit Nesting(ExpressionParser& parser) : depth(parser.depth_) {
      if (++depth > Budget::kMaxDepth) parser.fail("nested more than 200 levels deep");
    }
    ~Nesting() { --depth; }
    int& depth;
  };

 private:
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr value);
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_subscript(ExprPtr value);
  ExprPtr parse_filter_chain(ExprPtr value);
  ExprPtr parse_filter(ExprPtr value);
  ExprPtr parse_test(ExprPtr value);
  ExprPtr make_binary(ExprKind kind, std::string name, ExprPtr left, ExprPtr right) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace strata::text::jinja
