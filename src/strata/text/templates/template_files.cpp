#include "strata/text/templates/template_files.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/text/component_json.h"

namespace strata::text {
namespace {

namespace fs = std::filesystem;

void read_config_templates(const Json& config, const std::string& subject, TemplateFiles& found) {
  const std::string where = subject + ": chat_template";
  const auto it = config.find("chat_template");
  if (it == config.end() || it->is_null()) return;
  const auto put = [&found](const std::string& name, const std::string& text) {
    (name == "default"    ? found.standard
     : name == "tool_use" ? found.tools
                          : found.others[name]) = text;
  };
  if (it->is_string()) return put("default", it->get<std::string>());
  if (it->is_object()) {
    for (const auto& [name, text] : it->items()) {
      put(name, required_string(*it, name.c_str(), where));
    }
    return;
  }
  if (!it->is_array()) {
    throw FormatError("{}: found {}, expected text, a list or an object of texts", where,
                      it->type_name());
  }
  for (const Json& entry : *it) {
    if (!entry.is_object()) {
      throw FormatError("{}: found {} in the list, expected an object with name and template",
                        where, entry.type_name());
    }
    put(required_string(entry, "name", where), required_string(entry, "template", where));
  }
}

}  // namespace

TemplateFiles read_template_files(const fs::path& folder, const Json& tokenizer_config) {
  TemplateFiles found;
  if (tokenizer_config.is_object()) {
    read_config_templates(tokenizer_config, (folder / "tokenizer_config.json").string(), found);
  }
  const auto read = [&found](const fs::path& path, std::string& text) {
    if (!fs::exists(path)) return;
    found.files.push_back(path);
    text = read_file(path);
  };
  read(folder / "chat_template.jinja", found.standard);
  const fs::path more = folder / "additional_chat_templates";
  if (!fs::is_directory(more)) return found;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(more)) {
    if (entry.path().extension() == ".jinja") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    const std::string name = path.stem().string();
    read(path, name == "tool_use" ? found.tools : found.others[name]);
  }
  return found;
}

}  // namespace strata::text
