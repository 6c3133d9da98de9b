// Runs a parsed template over values. One object per rendering.
#pragma once

#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "strata/text/jinja/ast.h"

namespace strata::text::jinja {

using Function = Value (*)(Arguments&);

// Registries; nullptr for an unknown name. Filters and tests get their value as first argument.
Function find_filter(std::string_view name);
std::string why_no_filter(std::string_view name);
Function find_test(std::string_view name);
// The bound method `name` of a str, dict or list, or undefined. Fault for methods that would change
// the object.
Value find_method(const Value& object, std::string_view name);
// raise_exception, range, namespace, dict, strftime_now, cycler, joiner.
std::vector<std::pair<std::string, Value>> global_functions();
// What strftime_now gives at that time, in the local time zone.
std::string format_time(const std::string& format, std::time_t time);

// object.name (methods first, then items) and object[key] (items first).
Value get_attribute(const Value& object, std::string_view name);
Value get_item(const Value& object, const Value& key);
Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step);
Value binary_operation(const std::string& op, const Value& a, const Value& b, Budget& budget);

// Variables of a template region; regions nest.
struct Scope {
  explicit Scope(Scope* outer) : parent(outer) {}
  Scope* parent;
  std::vector<std::pair<std::string, Value>> variables;
  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};

class Interpreter {
 public:
  explicit Interpreter(std::vector<std::pair<std::string, Value>> variables);
  // Namespaces can refer to themselves; this takes such cycles apart.
  ~Interpreter();

  // Renders the whole program. Fault when the template or its data is at fault; line() is where.
  std::string run(const Program& program);
  int line() const { return line_; }
  const std::vector<std::pair<size_t, size_t>>& generation() const { return generation_; }

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  struct Loop;

  Flow exec(const Body& body, Scope& scope, std::string& out);
  Flow exec(const Stmt& stmt, Scope& scope, std::string& out);
  Flow exec_for(const Stmt& stmt, Scope& scope, std::string& out);
  Flow run_loop(const Stmt& stmt, const Value& iterable, Scope& scope, std::string& out, int depth);
  // Whether an item passes the condition of a for loop.
  bool passes(const Stmt& stmt, const Value& item, Scope& scope);
  Value loop_variable(const Stmt& stmt, const std::shared_ptr<Loop>& loop, Scope& scope);
  void exec_set_block(const Stmt& stmt, Scope& scope);
  void exec_call_block(const Stmt& stmt, Scope& scope, std::string& out);
  void exec_generation(const Stmt& stmt, Scope& scope, std::string& out);
  Value make_macro(const Stmt& stmt, Scope& scope, std::string name);
  Value call_macro(const Stmt& stmt, Scope& scope, const std::string& name, Arguments& arguments);
  void assign(const Expr& target, Value value, Scope& scope);

  Value eval(const Expr& expr, Scope& scope);
  Value eval_inner(const Expr& expr, Scope& scope);
  Value eval_compare(const Expr& expr, Scope& scope);
  Value eval_unary(const Expr& expr, Scope& scope);
  Value eval_collection(const Expr& expr, Scope& scope);
  Value eval_slice(const Expr& expr, Scope& scope);
  Value eval_call(const Expr& expr, Scope& scope, const Value* caller);
  Value eval_filter(const Expr& expr, Scope& scope, const Value* block_value);
  Value eval_test(const Expr& expr, Scope& scope);
  Arguments eval_arguments(const CallArguments& arguments, Scope& scope);
  Value call(const Value& callee, Arguments& arguments);
  Scope& new_scope(Scope* parent) {
    budget_.spend(4);
    return scopes_.emplace_back(parent);
  }

  // Drops the scopes of a finished region, unless something that stands in one may be called later.
  struct ScopeMark {
    explicit ScopeMark(Interpreter& in)
        : in(in), size(in.scopes_.size()), captures(in.num_captures_) {}
    ~ScopeMark() {
      while (in.num_captures_ == captures && in.scopes_.size() > size) in.scopes_.pop_back();
    }
    Interpreter& in;
    size_t size;
    int64_t captures;
  };

  Budget budget_;
  int line_ = 1;
  int depth_ = 0;             // statements and calls in progress
  int eval_depth_ = 0;        // expressions in progress
  std::deque<Scope> scopes_;  // macros and recursive loops refer to the scope they stand in
  int64_t num_captures_ = 0;  // references of that kind, ever
  std::vector<std::weak_ptr<Dict>> namespaces_;  // those that hold other objects
  std::string* root_ = nullptr;
  std::vector<std::pair<size_t, size_t>> generation_;
};

}  // namespace strata::text::jinja
