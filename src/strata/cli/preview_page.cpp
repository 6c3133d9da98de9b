#include "strata/cli/preview_page.h"

#include <algorithm>

#include <fmt/format.h>

#include "strata/report/svg_chart.h"

namespace strata::cli {
namespace {

constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
table { border-collapse: collapse; } td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
.warning { background: #fff3cd; border-left: 4px solid #b58900; padding: .3rem .8rem; margin: .4rem 0; }
.bar { display: inline-block; height: .8rem; background: #4a7fb5; min-width: 1px; }
.row { border: 1px solid #ccc; border-radius: 6px; padding: .6rem .8rem; margin: 1rem 0;
       font: 13px/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.document { border-top: 2px dashed #c33; color: #c33; margin: .5rem 0; font-size: 12px; }
.t { background: #c9efcf; } .m { color: #777; } .s { outline: 1px solid #a5a; border-radius: 2px; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818; } .t { background: #1d5128; } .m { color: #999; }
  .warning { background: #3d3414; } .row { border-color: #444; } }
</style>
)";

void add_token(const PreviewToken& token, std::string& page) {
  std::string text = report::escape_html(token.text);
  // The line end itself stays, so that the text keeps its shape.
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 4)) {
    text.insert(at, "\u21b5");
  }
  page += fmt::format("<span class=\"{}{}\" title=\"{}\">{}</span>", token.is_trained ? "t" : "m",
                      token.is_special ? " s" : "", token.id, text);
}

void add_row(const PreviewRow& row, std::string& page) {
  page += fmt::format("<h3>Row {}</h3><div class=\"row\">", row.index);
  for (size_t i = 0; i < row.documents.size(); ++i) {
    if (row.documents.size() > 1) {
      page += fmt::format("<div class=\"document\">{}, {} tokens</div>", row.documents[i].name,
                          row.documents[i].tokens.size());
    }
    for (const PreviewToken& token : row.documents[i].tokens) add_token(token, page);
  }
  page += "</div>\n";
}

void add_histogram(const Preview& preview, std::string& page) {
  if (preview.bars.empty()) return;
  const int64_t highest = std::max<int64_t>(1, *std::ranges::max_element(preview.bars));
  page += "<h2>Tokens of a row</h2><table>";
  for (size_t i = first_bar(preview); i < preview.bars.size(); ++i) {
    page += fmt::format(
        "<tr><td>{}</td><td><span class=\"bar\" style=\"width:{:.1f}rem\"></span> {}</td></tr>",
        bar_label(preview, i),
        24.0 * static_cast<double>(preview.bars[i]) / static_cast<double>(highest),
        preview.bars[i]);
  }
  page += "</table>\n";
}

}  // namespace

std::string bar_label(const Preview& preview, size_t i) {
  const int64_t begin = static_cast<int64_t>(i) * preview.bar_tokens;
  if (preview.bar_tokens == 1) return std::to_string(begin);
  return fmt::format("{}-{}", begin, begin + preview.bar_tokens - 1);
}

size_t first_bar(const Preview& preview) {
  const auto first = std::ranges::find_if(preview.bars, [](int64_t rows) { return rows > 0; });
  return static_cast<size_t>(first - preview.bars.begin());
}

std::string preview_page(const Preview& preview) {
  std::string page(kHead);
  page += fmt::format("<title>{0}</title></head><body><h1>{0}</h1>\n",
                      report::escape_html(preview.title));
  for (const std::string& warning : preview.warnings) {
    page += fmt::format("<div class=\"warning\">{}</div>\n", report::escape_html(warning));
  }
  page += "<table>";
  for (const auto& [name, value] : preview.facts) {
    page += fmt::format("<tr><td>{}</td><td>{}</td></tr>", report::escape_html(name),
                        report::escape_html(value));
  }
  page += "</table>\n";
  add_histogram(preview, page);
  page +=
      "<h2>Examples</h2><p><span class=\"t\">trained</span> <span class=\"m\">not trained</span> "
      "<span class=\"s\">special token</span> (the id is shown under the pointer)</p>\n";
  for (const PreviewRow& row : preview.rows) add_row(row, page);
  return page + "</body></html>\n";
}

}  // namespace strata::cli
