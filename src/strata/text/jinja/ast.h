// The tree of a parsed template. Immutable after parsing.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "strata/text/jinja/value.h"

namespace strata::text::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<std::unique_ptr<Stmt>>;

enum class ExprKind {
  kConstant,     // constant
  kName,         // name
  kList,         // items
  kTuple,        // items
  kDict,         // items: key, value, key, value, ...
  kUnary,        // name: not - +; items[0]
  kBinary,       // name: + - * / // % **; items[0], items[1]
  kAnd,          // items[0], items[1]
  kOr,           // items[0], items[1]
  kCompare,      // items[0], then pairs: operators[i] with items[i + 1]
  kConcat,       // items
  kConditional,  // items: test, value, other value (may be null)
  kAttribute,    // items[0] . name
  kItem,         // items[0] [ items[1] ]
  kSlice,        // items: object, start, stop, step (may be null)
  kCall,         // items[0] ( arguments )
  kFilter,       // items[0] | name ( arguments ); items[0] is null in a filter block
  kTest,         // items[0] is name ( arguments )
};

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;  // *args, **kwargs
};

struct Expr {
  ExprKind kind;
  int line;
  int depth = 1;  // levels below and including this one; bounded, so that recursion is
  std::string name;
  Value constant;
  std::vector<ExprPtr> items;
  std::vector<std::string> operators;
  CallArguments arguments;
};

enum class StmtKind {
  kData,         // text
  kPrint,        // value
  kIf,           // branches; a branch without test is the else
  kFor,          // target in value if filter: body else other
  kSet,          // target = value
  kSetBlock,     // target = body through value (a filter chain, may be null)
  kMacro,        // name, parameters, body
  kCallBlock,    // value (a call) with caller(parameters) = body
  kFilterBlock,  // value (a filter chain) over body
  kWith,         // assignments, body
  kGeneration,   // body
  kBreak,
  kContinue,
};

struct Parameter {
  std::string name;
  ExprPtr fallback;  // may be null
};

struct Stmt {
  StmtKind kind;
  int line;
  std::string text;  // data or name
  ExprPtr target, value, filter;
  Body body, other;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;
  std::vector<Parameter> parameters;
  bool is_recursive = false;
  bool takes_varargs = false, takes_kwargs = false;  // the macro's body uses these names
};

struct Program {
  Body body;
  bool has_generation = false;
};

// Fault with the line in its text when the source is not a template of the supported language.
Program parse(std::string_view source);

}  // namespace strata::text::jinja
