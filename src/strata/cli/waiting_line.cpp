#include "strata/cli/waiting_line.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string_view>

#include "strata/base/visible_text.h"
#include "strata/report/live_line.h"

namespace strata::cli {
namespace {

void write(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

std::shared_ptr<report::LiveLine> make_line() {
  return std::make_shared<report::LiveLine>(
      write, [] { return report::terminal_columns(STDERR_FILENO); }, ::isatty(STDERR_FILENO) == 1);
}

}  // namespace

hf::DownloadProgress shown_downloads() {
  const auto line = make_line();
  const auto say = [line](const std::string& text) {
    line->clear();
    write(visible(text) + "\n");
  };
  return {.came =
              [line, say](const std::string& name, int64_t done, int64_t all) {
                const std::string text = report::download_text(name, done, all);
                line->show(text);
                if (done == all) say(text);
              },
          .say = say};
}

std::function<void(const std::string&, int64_t, double)> shown_preparation() {
  return [line = make_line()](const std::string& subject, int64_t rows, double part) {
    line->show(report::preparation_text(subject, rows, part));
  };
}

}  // namespace strata::cli
