// Records of the flags of `strata config` itself, under the names of `accelerate config`.
#include "strata/config/settings/table.h"

namespace strata::config {

std::span<const Setting> config_command_settings_table() {
  static const std::vector<Setting> table = {
      {.name = "config_file",
       .kind = Kind::kSource,
       .is_path = true,
       .help = "the file that is written (questionnaire, default, update) or read (convert)",
       .group = "files"},
      {.name = "output_file",
       .kind = Kind::kSource,
       .is_path = true,
       .help = "convert: the file that is written; default: standard output",
       .group = "files"},
      {.name = "overwrite",
       .kind = Kind::kTranslated,
       .is_switch = true,
       .choices = {"true", "false"},
       .help = "convert: overwrite config_file, or an existing output_file",
       .group = "files"},
      {.name = "to",
       .kind = Kind::kTranslated,
       .choices = {"fsdp2", "deepspeed", "strata"},
       .help = "convert: version 2 of accelerate's FSDP section, DeepSpeed's JSON, or Strata's own "
               "YAML",
       .group = "form"},
      {.name = "mixed_precision",
       .kind = Kind::kTranslated,
       .choices = {"no", "fp16", "bf16"},
       .help = "default: the precision that is written",
       .group = "form"},
  };
  return table;
}

}  // namespace strata::config
