#include "strata/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>
#include <vector>

#include "strata/base/error.h"
#include "strata/base/text_distance.h"
#include "strata/optim/deepspeed_schedule.h"
#include "strata/optim/schedule_kwargs.h"

namespace strata::optim {
namespace {

using Factor = std::function<double(int64_t)>;
constexpr double kPi = std::numbers::pi;

double ratio(double part, double whole) { return part / std::max(1.0, whole); }

// Linear warm-up in front of `after`, which gets the progress after it in [0, 1] (beyond 1 past the
// end).
Factor with_warmup(int64_t warmup, int64_t total, std::function<double(double)> after) {
  return [=](int64_t s) {
    if (s < warmup) return ratio(static_cast<double>(s), static_cast<double>(warmup));
    return after(ratio(static_cast<double>(s - warmup), static_cast<double>(total - warmup)));
  };
}

Factor linear(const ScheduleSettings& s) {
  Kwargs(s, {});
  return with_warmup(s.warmup_steps, s.total_steps, [](double p) { return std::max(0.0, 1 - p); });
}

Factor cosine(const ScheduleSettings& s) {
  const double cycles = Kwargs(s, {"num_cycles"}).number("num_cycles", 0.5);
  return with_warmup(s.warmup_steps, s.total_steps, [=](double p) {
    return std::max(0.0, 0.5 * (1 + std::cos(kPi * cycles * 2 * p)));
  });
}

Factor cosine_with_restarts(const ScheduleSettings& s) {
  const double cycles = Kwargs(s, {"num_cycles"}).number("num_cycles", 1);
  return with_warmup(s.warmup_steps, s.total_steps, [=](double p) {
    if (p >= 1) return 0.0;
    return std::max(0.0, 0.5 * (1 + std::cos(kPi * std::fmod(cycles * p, 1.0))));
  });
}

Factor polynomial(const ScheduleSettings& s) {
  const Kwargs kwargs(s, {"lr_end", "power"});
  const double end = kwargs.number("lr_end", 1e-7);
  const double power = kwargs.number("power", 1);
  const double lr = s.learning_rate;
  if (end >= lr) kwargs.fail("lr_end", fmt::format("a value below learning_rate {}", lr));
  return [=, warmup = s.warmup_steps, total = s.total_steps](int64_t step) {
    if (step < warmup) return ratio(static_cast<double>(step), static_cast<double>(warmup));
    if (step > total) return end / lr;
    const double rest =
        1 - static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    return ((lr - end) * std::pow(rest, power) + end) / lr;
  };
}

Factor constant(const ScheduleSettings& s) {
  Kwargs(s, {});
  return [](int64_t) { return 1.0; };
}

Factor constant_with_warmup(const ScheduleSettings& s) {
  Kwargs(s, {});
  return with_warmup(s.warmup_steps, s.total_steps, [](double) { return 1.0; });
}

Factor inverse_sqrt(const ScheduleSettings& s) {
  const double given = Kwargs(s, {"timescale"}).number("timescale", 0);
  const double warmup = static_cast<double>(s.warmup_steps);
  const double timescale = given > 0 ? given : (warmup > 0 ? warmup : 10000);
  return [=](int64_t step) {
    if (static_cast<double>(step) < warmup) return ratio(static_cast<double>(step), warmup);
    return 1 / std::sqrt((static_cast<double>(step) + timescale - warmup) / timescale);
  };
}

double min_rate(const Kwargs& kwargs, const ScheduleSettings& s) {
  if (kwargs.has("min_lr") && kwargs.has("min_lr_rate")) {
    kwargs.fail("min_lr", "only one of min_lr and min_lr_rate");
  }
  if (kwargs.has("min_lr")) return kwargs.number("min_lr", 0) / s.learning_rate;
  if (!kwargs.has("min_lr_rate")) kwargs.fail("min_lr", "min_lr or min_lr_rate");
  return kwargs.number("min_lr_rate", 0);
}

Factor cosine_with_min_lr(const ScheduleSettings& s) {
  const Kwargs kwargs(s, {"num_cycles", "min_lr", "min_lr_rate"});
  const double cycles = kwargs.number("num_cycles", 0.5);
  const double least = min_rate(kwargs, s);
  return with_warmup(s.warmup_steps, s.total_steps, [=](double p) {
    const double factor = 0.5 * (1 + std::cos(kPi * cycles * 2 * p));
    return std::max(0.0, factor * (1 - least) + least);
  });
}

Factor cosine_warmup_with_min_lr(const ScheduleSettings& s) {
  const Kwargs kwargs(s, {"num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"});
  const double cycles = kwargs.number("num_cycles", 0.5);
  const double least = min_rate(kwargs, s);
  const bool has_start = kwargs.has("warmup_lr_rate");
  const double start = kwargs.number("warmup_lr_rate", 0);
  const double warmup = static_cast<double>(s.warmup_steps);
  return [=, total = static_cast<double>(s.total_steps)](int64_t step) {
    const double at = static_cast<double>(step);
    if (at < warmup) {
      if (!has_start) return (at + 1) / std::max(1.0, warmup);
      return start + (1 - start) * at / std::max(1.0, warmup - 1);
    }
    const double p = (at - warmup + 1) / std::max(1.0, total - warmup);
    const double factor = 0.5 * (1 + std::cos(kPi * cycles * 2 * p));
    return std::max(0.0, factor * (1 - least) + least);
  };
}

double shape_up(const Kwargs& kwargs, const std::string& type, double p) {
  if (type == "linear") return p;
  if (type == "cosine") return 0.5 * (1 - std::cos(kPi * p));
  if (type == "1-sqrt") return 1 - std::sqrt(1 - p);
  kwargs.fail("warmup_type", "linear, cosine or 1-sqrt");
}

double shape_down(const Kwargs& kwargs, const std::string& type, double p, double cycles) {
  if (type == "linear") return 1 - p;
  if (type == "cosine") return 0.5 * (1 + std::cos(kPi * cycles * 2 * p));
  if (type == "1-sqrt") return 1 - std::sqrt(p);
  kwargs.fail("decay_type", "linear, cosine or 1-sqrt");
}

Factor warmup_stable_decay(const ScheduleSettings& s) {
  const Kwargs kwargs(s, {"num_decay_steps", "num_stable_steps", "warmup_type", "decay_type",
                          "min_lr_ratio", "num_cycles"});
  if (!kwargs.has("num_decay_steps")) kwargs.fail("num_decay_steps", "the steps of the decay");
  const double decay = kwargs.number("num_decay_steps", 0);
  const double warmup = static_cast<double>(s.warmup_steps);
  const double stable =
      kwargs.number("num_stable_steps", static_cast<double>(s.total_steps) - warmup - decay);
  const std::string up = kwargs.text("warmup_type", "linear");
  const std::string down = kwargs.text("decay_type", "cosine");
  const double least = kwargs.number("min_lr_ratio", 0);
  const double cycles = kwargs.number("num_cycles", 0.5);
  shape_up(kwargs, up, 0);
  shape_down(kwargs, down, 0, cycles);
  return [=, settings = s](int64_t step) {
    const Kwargs known(settings, {"num_decay_steps", "num_stable_steps", "warmup_type",
                                  "decay_type", "min_lr_ratio", "num_cycles"});
    const double at = static_cast<double>(step);
    if (at < warmup) {
      return std::max(0.0, shape_up(known, up, ratio(at, warmup)) * (1 - least) + least);
    }
    if (at < warmup + stable) return 1.0;
    if (at >= warmup + stable + decay) return least;
    const double p = ratio(at - warmup - stable, decay);
    return std::max(0.0, shape_down(known, down, p, cycles) * (1 - least) + least);
  };
}

const std::map<std::string, Factor (*)(const ScheduleSettings&)>& schedules() {
  static const std::map<std::string, Factor (*)(const ScheduleSettings&)> kSchedules = {
      {"linear", linear},
      {"cosine", cosine},
      {"cosine_with_restarts", cosine_with_restarts},
      {"polynomial", polynomial},
      {"constant", constant},
      {"constant_with_warmup", constant_with_warmup},
      {"inverse_sqrt", inverse_sqrt},
      {"cosine_with_min_lr", cosine_with_min_lr},
      {"cosine_warmup_with_min_lr", cosine_warmup_with_min_lr},
      {"warmup_stable_decay", warmup_stable_decay},
      {"WarmupLR", deepspeed_warmup},
      {"WarmupDecayLR", deepspeed_warmup_decay},
      {"WarmupCosineLR", deepspeed_warmup_cosine},
      {"OneCycle", deepspeed_one_cycle},
      {"LRRangeTest", deepspeed_range_test},
  };
  return kSchedules;
}

}  // namespace

std::function<double(int64_t)> make_schedule(const ScheduleSettings& settings) {
  const auto found = schedules().find(settings.type);
  if (found != schedules().end()) return found->second(settings);
  std::vector<std::string> names;
  for (const auto& [name, _] : schedules()) names.push_back(name);
  const auto nearest = closest(settings.type, names);
  throw ConfigError("lr_scheduler_type: found \"{}\", expected one of [{}]; {}", settings.type,
                    fmt::join(names, ", "),
                    nearest ? "did you mean \"" + *nearest + "\"?" : "choose one of them");
}

}  // namespace strata::optim
