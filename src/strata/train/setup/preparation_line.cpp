#include "strata/train/setup/preparation_line.h"

#include <chrono>

namespace strata::train {

PreparationLine::PreparationLine(const Output& output, bool is_main)
    : is_main_(is_main),
      is_terminal_(output.is_terminal),
      write_(output.write),
      line_(output.write, output.columns, is_main && output.is_terminal),
      log_(output.write, std::chrono::seconds(30)) {}

void PreparationLine::show_rows(const std::string& subject, int64_t rows, double part) {
  if (!is_main_) return;
  if (is_terminal_) {
    line_.show(report::preparation_text(subject, rows, part));
  } else {
    log_.show(report::preparation_text(subject, rows, part, /*least=*/1));
  }
}

void PreparationLine::show_download(const std::string& name, int64_t done, int64_t all) {
  if (!is_main_) return;
  const std::string text = report::download_text(name, done, all);
  if (done == all) {
    clear();
    write_(text + "\n");
  } else if (is_terminal_) {
    line_.show(text);
  } else {
    log_.show(text);
  }
}

void PreparationLine::clear() {
  line_.clear();
  log_.restart();
}

std::function<void(const std::string&, int64_t, double)> PreparationLine::row_progress() {
  return [this](const std::string& subject, int64_t rows, double part) {
    show_rows(subject, rows, part);
  };
}

std::function<void(const std::string&)> PreparationLine::lines() {
  if (!is_main_) return {};
  return [this](const std::string& text) {
    clear();
    write_(text + "\n");
  };
}

}  // namespace strata::train
