// What the README.md of a data set says about its configurations and their columns: the lists
// `configs` and `dataset_info` of the YAML between its first two lines of three dashes. Never looks
// for the files.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "strata/data/files/source.h"

namespace strata::data {

struct DatasetConfiguration {
  std::string name;
  bool is_default = false;
  std::string data_dir;  // below the data set's folder; empty: that folder
  // Splits and the patterns of their files, in the order of the card. Empty: found by their names.
  std::vector<std::pair<std::string, std::vector<std::string>>> data_files;
  // Keys that nothing is made of, and where they stand ("README.md:5").
  struct OtherKey {
    std::string name, where;
  };
  std::vector<OtherKey> other_keys = {};
};

// Empty where there is no card or it names none. Errors: FormatError with the line for YAML that
// `datasets` would not take.
std::vector<DatasetConfiguration> read_configurations(const std::filesystem::path& folder);

// The one of that name; without a name the default one (the only one, the one called "default" or
// the one that says so). Requires: `all` is not empty. Errors: ConfigError that lists them;
// FormatError for one with a key that changes how `datasets` reads its files.
const DatasetConfiguration& choose_configuration(const std::vector<DatasetConfiguration>& all,
                                                 const std::string& name,
                                                 const std::string& subject);

// The columns that the card describes (`features`): names of classes where it has them, none for
// what is no class. `configuration`: of these; empty: the default one. Errors: as above, and
// FormatError for classes without a name for each number, or with one name twice.
ClassNames read_card_classes(const std::filesystem::path& folder, const std::string& configuration);

}  // namespace strata::data
