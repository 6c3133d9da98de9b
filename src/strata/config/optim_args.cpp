// Source: transformers trainer_optimizer (_parse_optim_args, _get_sgd), torch.optim.SGD.
#include "strata/config/optim_args.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/json.h"

namespace strata::config {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& subject) : subject_(subject) {}

  SgdArgs read(const std::string& text) {
    std::istringstream rest(text);
    for (std::string pair; std::getline(rest, pair, ',');) take(pair);
    check(text);
    return args_;
  }

 private:
  void take(const std::string& pair) {
    const size_t equals = pair.find('=');
    const std::string key = pair.substr(0, equals);
    const bool is_known = key == "momentum" || key == "dampening" || key == "nesterov";
    if (equals == pair.npos || !is_known) {
      throw ConfigError(
          "{}: found \"{}\", expected momentum=M, dampening=D or nesterov=true, separated by "
          "commas; correct it{}",
          subject_, pair,
          key == "weight_decay" ? ", and give weight_decay as the setting of that name" : "");
    }
    const std::string value = pair.substr(equals + 1);
    if (key == "momentum") args_.momentum = number(pair, value);
    if (key == "dampening") args_.dampening = number(pair, value);
    if (key == "nesterov") args_.nesterov = flag(pair, value);
  }

  double number(const std::string& pair, const std::string& text) const {
    size_t end = 0;
    double value = NAN;
    try {
      value = std::stod(text, &end);
    } catch (const std::exception&) {
    }
    if (end == text.size() && std::isfinite(value) && value >= 0) return value;
    throw ConfigError("{}: found \"{}\", expected a number of at least 0", subject_, pair);
  }

  bool flag(const std::string& pair, std::string text) const {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    if (text == "true" || text == "1" || text == "yes") return true;
    if (text == "false" || text == "0" || text == "no") return false;
    throw ConfigError("{}: found \"{}\", expected true or false", subject_, pair);
  }

  void check(const std::string& text) const {
    if (args_.momentum == 0 && (args_.nesterov || args_.dampening != 0)) {
      throw ConfigError("{}: found \"{}\", expected a momentum above 0 with it; add momentum=0.9",
                        subject_, text);
    }
    if (args_.nesterov && args_.dampening != 0) {
      throw ConfigError("{}: found \"{}\", expected nesterov without dampening; remove one",
                        subject_, text);
    }
  }

  const std::string& subject_;
  SgdArgs args_;
};

}  // namespace

SgdArgs parse_sgd_args(const std::string& text, const std::string& subject) {
  std::string plain = text;
  std::erase(plain, ' ');
  if (plain.empty() || plain == "none" || plain == "None") return {};
  return Reader(subject).read(plain);
}

std::string sgd_args_text(const SgdArgs& args) {
  if (args.momentum == 0) return {};
  std::string text = "momentum=" + python_float_repr(args.momentum);
  if (args.dampening != 0) text += ",dampening=" + python_float_repr(args.dampening);
  if (args.nesterov) text += ",nesterov=true";
  return text;
}

std::string normal_optim_args(const std::string& text) {
  try {
    return sgd_args_text(parse_sgd_args(text, ""));
  } catch (const ConfigError&) {
    return text;
  }
}

}  // namespace strata::config
