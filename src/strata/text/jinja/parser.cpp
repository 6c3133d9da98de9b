// Statements of the template language.
#include "strata/text/jinja/parser.h"

#include <algorithm>

namespace strata::text::jinja {
namespace {

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Program run() {
    Program program;
    program.body = parse_body({});
    program.has_generation = has_generation_;
    return program;
  }

 private:
  // Statements up to a tag that begins with one of `ends` (whose name is left to be taken).
  Body parse_body(std::initializer_list<std::string_view> ends);
  std::unique_ptr<Stmt> parse_tag();
  void parse_if(Stmt& stmt);
  void parse_for(Stmt& stmt);
  void parse_set(Stmt& stmt);
  void parse_macro(Stmt& stmt);
  void parse_call(Stmt& stmt);
  void parse_with(Stmt& stmt);
  std::vector<Parameter> parse_parameters();
  Body parse_block_until(std::string_view end) {
    close_tag();
    Body body = parse_body({end});
    expect_name(end);
    return body;
  }
  void close_tag() {
    if (current().kind != TokenKind::kBlockEnd) {
      fail("found '" + current().text + "', expected the end of the tag");
    }
    take();
  }

  bool has_generation_ = false;
  int loops_ = 0;
};

Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  Body body;
  while (true) {
    const Token token = current();
    auto stmt = std::make_unique<Stmt>();
    stmt->line = token.line;
    if (token.kind == TokenKind::kEnd) {
      if (ends.size() == 0) return body;
      fail("the template ends, expected '" + std::string(*(ends.end() - 1)) + "'");
    }
    take();
    if (token.kind == TokenKind::kData) {
      stmt->kind = StmtKind::kData;
      stmt->text = token.text;
    } else if (token.kind == TokenKind::kPrintBegin) {
      stmt->kind = StmtKind::kPrint;
      stmt->value = parse_tuple();
      if (current().kind != TokenKind::kPrintEnd) {
        fail("found '" + current().text + "', expected the end of the print statement");
      }
      take();
    } else {
      for (const std::string_view end : ends) {
        if (is_name(end)) return body;
      }
      stmt = parse_tag();
      close_tag();
    }
    body.push_back(std::move(stmt));
  }
}

std::unique_ptr<Stmt> Parser::parse_tag() {
  auto stmt = std::make_unique<Stmt>();
  stmt->line = current().line;
  const std::string tag = take_name();
  if (tag == "if") {
    parse_if(*stmt);
  } else if (tag == "for") {
    parse_for(*stmt);
  } else if (tag == "set") {
    parse_set(*stmt);
  } else if (tag == "macro") {
    parse_macro(*stmt);
  } else if (tag == "call") {
    parse_call(*stmt);
  } else if (tag == "with") {
    parse_with(*stmt);
  } else if (tag == "filter") {
    stmt->kind = StmtKind::kFilterBlock;
    stmt->value = parse_filters(nullptr, /*has_first_pipe=*/false);
    stmt->body = parse_block_until("endfilter");
  } else if (tag == "generation") {
    has_generation_ = true;
    stmt->kind = StmtKind::kGeneration;
    stmt->body = parse_block_until("endgeneration");
  } else if (tag == "break" || tag == "continue") {
    if (loops_ == 0) fail("'" + tag + "' outside a loop");
    stmt->kind = tag == "break" ? StmtKind::kBreak : StmtKind::kContinue;
  } else {
    fail("unknown tag '" + tag + "'");
  }
  return stmt;
}

void Parser::parse_if(Stmt& stmt) {
  stmt.kind = StmtKind::kIf;
  while (true) {
    ExprPtr test = parse_tuple(/*allows_conditional=*/false);
    close_tag();
    stmt.branches.emplace_back(std::move(test), parse_body({"elif", "else", "endif"}));
    const std::string next = take_name();
    if (next == "elif") continue;
    if (next == "else") {
      close_tag();
      stmt.branches.emplace_back(nullptr, parse_body({"endif"}));
      take();
    }
    return;
  }
}

void Parser::parse_for(Stmt& stmt) {
  stmt.kind = StmtKind::kFor;
  stmt.target = parse_target(/*allows_attribute=*/false);
  expect_name("in");
  stmt.value = parse_tuple(/*allows_conditional=*/false);
  if (skip_name("if")) stmt.filter = parse_expression();
  stmt.is_recursive = skip_name("recursive");
  close_tag();
  ++loops_;
  stmt.body = parse_body({"endfor", "else"});
  --loops_;
  if (take_name() == "else") {
    close_tag();
    stmt.other = parse_body({"endfor"});
    take();
  }
}

void Parser::parse_set(Stmt& stmt) {
  stmt.target = parse_target(/*allows_attribute=*/true);
  if (skip_operator("=")) {
    stmt.kind = StmtKind::kSet;
    stmt.value = parse_tuple();
    return;
  }
  stmt.kind = StmtKind::kSetBlock;
  if (is_operator("|")) stmt.value = parse_filters(nullptr, /*has_first_pipe=*/true);
  stmt.body = parse_block_until("endset");
}

std::vector<Parameter> Parser::parse_parameters() {
  std::vector<Parameter> parameters;
  expect_operator("(");
  while (!is_operator(")")) {
    Parameter parameter{take_name(), nullptr};
    if (skip_operator("=")) {
      parameter.fallback = parse_expression();
    } else if (!parameters.empty() && parameters.back().fallback) {
      fail("a parameter without default follows one with a default");
    }
    parameters.push_back(std::move(parameter));
    if (!is_operator(")")) expect_operator(",");
  }
  take();
  return parameters;
}

void Parser::parse_macro(Stmt& stmt) {
  stmt.kind = StmtKind::kMacro;
  stmt.text = take_name();
  stmt.parameters = parse_parameters();
  const int loops = std::exchange(loops_, 0);
  sees_varargs_ = sees_kwargs_ = false;
  stmt.body = parse_block_until("endmacro");
  stmt.takes_varargs = sees_varargs_;
  stmt.takes_kwargs = sees_kwargs_;
  loops_ = loops;
}

void Parser::parse_call(Stmt& stmt) {
  stmt.kind = StmtKind::kCallBlock;
  if (is_operator("(")) stmt.parameters = parse_parameters();
  stmt.value = parse_expression();
  if (stmt.value->kind != ExprKind::kCall) fail("expected a call after 'call'");
  const int loops = std::exchange(loops_, 0);
  stmt.body = parse_block_until("endcall");
  loops_ = loops;
}

void Parser::parse_with(Stmt& stmt) {
  stmt.kind = StmtKind::kWith;
  while (current().kind != TokenKind::kBlockEnd) {
    if (!stmt.assignments.empty()) expect_operator(",");
    ExprPtr target = make(ExprKind::kName, take_name());
    expect_operator("=");
    stmt.assignments.emplace_back(std::move(target), parse_expression());
  }
  stmt.body = parse_block_until("endwith");
}

}  // namespace

Program parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace strata::text::jinja
