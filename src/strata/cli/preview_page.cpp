#include "strata/cli/preview_page.h"

#include <algorithm>

#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/report/page_style.h"
#include "strata/report/svg_chart.h"

namespace strata::cli {
namespace {

// What the page has beside the look of the report.
constexpr std::string_view kPreviewStyle = R"css(
:root { --trained: #c9efcf; --warned: #fff3cd; }
@media (prefers-color-scheme: dark) { :root { --trained: #1d5128; --warned: #3d3414; } }
td:first-child { width: 200px; font-variant-numeric: tabular-nums; }
.warning { background: var(--warned); border-left: 4px solid var(--amber); border-radius: 6px;
  padding: 6px 14px; margin-bottom: 10px; overflow-wrap: anywhere; }
.bar { display: inline-block; height: 11px; background: var(--train); border-radius: 2px; min-width: 1px; }
.row { font: 13px/1.7 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.document { border-top: 2px dashed var(--eval); color: var(--eval); margin: 8px 0; font-size: 12px; }
.t { background: var(--trained); } .m { color: var(--soft); }
.s { outline: 1px solid var(--violet); border-radius: 2px; }
)css";

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
  page += fmt::format("<section class=\"card\"><h2>Row {}</h2><div class=\"row\">", row.index);
  for (size_t i = 0; i < row.documents.size(); ++i) {
    if (!row.documents[i].name.empty()) {
      page += fmt::format("<div class=\"document\">{}, {}</div>", row.documents[i].name,
                          counted(row.documents[i].tokens.size(), "token"));
    }
    for (const PreviewToken& token : row.documents[i].tokens) add_token(token, page);
  }
  page += "</div></section>\n";
}

void add_histogram(const Preview& preview, std::string& page) {
  if (preview.bars.empty()) return;
  const int64_t highest = std::max<int64_t>(1, *std::ranges::max_element(preview.bars));
  page += "<section class=\"card\"><h2>Tokens of a row</h2><table>";
  for (const LengthBar& bar : length_bars(preview)) {
    page += fmt::format(
        "<tr><td>{}</td><td><span class=\"bar\" style=\"width:{:.1f}%\"></span> {}</td></tr>",
        bar.lengths, 85.0 * static_cast<double>(bar.rows) / static_cast<double>(highest), bar.rows);
  }
  page += "</table></section>\n";
}

}  // namespace

std::vector<LengthBar> length_bars(const Preview& preview) {
  const std::vector<int64_t>& bars = preview.bars;
  const auto is_empty = [](int64_t rows) { return rows == 0; };
  std::vector<LengthBar> lines;
  for (auto bar = std::ranges::find_if_not(bars, is_empty); bar != bars.end();) {
    auto end = bar + 1;
    if (is_empty(*bar)) end = std::find_if_not(end, bars.end(), is_empty);
    const int64_t begin = (bar - bars.begin()) * preview.bar_tokens;
    const int64_t last = (end - bars.begin()) * preview.bar_tokens - 1;
    lines.push_back(
        {begin == last ? std::to_string(begin) : fmt::format("{}-{}", begin, last), *bar});
    bar = end;
  }
  return lines;
}

std::string preview_page(const Preview& preview) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>{0}</title>\n"
      "<style>{1}{2}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n"
      "<p class=\"subtitle\">what a run reads, before it starts</p>\n",
      report::escape_html(preview.title), report::kPageStyle, kPreviewStyle);
  for (const std::string& warning : preview.warnings) {
    page += fmt::format("<div class=\"warning\">{}</div>\n", report::escape_html(warning));
  }
  page += "<section class=\"card\"><table>";
  for (const auto& [name, value] : preview.facts) {
    page += fmt::format("<tr><td>{}</td><td>{}</td></tr>", report::escape_html(name),
                        report::escape_html(value));
  }
  page += "</table></section>\n";
  add_histogram(preview, page);
  page +=
      "<p class=\"subtitle\">Examples: <span class=\"t\">trained</span> <span class=\"m\">not "
      "trained</span> <span class=\"s\">special token</span> (the id is shown under the pointer)"
      "</p>\n";
  for (const PreviewRow& row : preview.rows) add_row(row, page);
  return page + "<footer>Written by Strata.</footer>\n</main>\n</body>\n</html>\n";
}

}  // namespace strata::cli
