// JSON in, with line and column in every error, and out in the exact bytes that Python's json.dumps
// writes. Never: the meaning of any document.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace strata {

// Keeps the order of keys. Looking up a key is linear: iterate over large objects.
using Json = nlohmann::ordered_json;

enum class DuplicateKeys { kKeepLast, kReject };

struct JsonOptions {
  // Line number of the first line in messages (for a row of a JSON lines file).
  size_t first_line = 1;
  // Python keeps the last value of a repeated key (at the place of the first); so does kKeepLast.
  DuplicateKeys duplicates = DuplicateKeys::kKeepLast;
  size_t max_depth = 512;
};

// Parses one document that fills the whole text. As Python's reader: NaN, Infinity and -Infinity
// are numbers. Stricter than it: invalid UTF-8 and unpaired surrogates are errors. A leading UTF-8
// byte-order mark is skipped. Integers beyond 64 bits become doubles.
// Throws FormatError "SUBJECT:LINE:COLUMN: found ..., expected ..."; columns count characters
// from 1.
Json parse_json(std::string_view text, const std::string& subject, const JsonOptions& options = {});

// The same for a file; the subject is the path.
Json read_json_file(const std::filesystem::path& path, const JsonOptions& options = {});

// The text of json.dumps(value, indent=indent, sort_keys=sort_keys, ensure_ascii=ensure_ascii).
// A negative indent stands for indent=None: one line, separators ", " and ": ". No final newline.
std::string dump_python(const Json& value, int indent = 2, bool sort_keys = true,
                        bool ensure_ascii = true);

// repr() of a Python float: the shortest digits that read back equal ("0.1", "1.0", "1e-05",
// "1e+16", "nan", "inf"). In JSON text dump_python writes NaN, Infinity and -Infinity instead.
std::string python_float_repr(double value);

// A JSON string literal with its quotes. Requires: valid UTF-8.
std::string quote_json(std::string_view text, bool ensure_ascii = false);

}  // namespace strata
