// What the program says on its standard streams, and what becomes of it where nobody reads. Never:
// ends the process.
#pragma once

#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace strata::cli {

// Opens /dev/null in the place of those that are closed: the first file that is opened would be
// taken for one, and be written to. Threads: none may run yet.
void fill_standard_streams();

// On standard error. What finds no reader, or no room on a disk, is lost; no work ends for that.
void tell_text(std::string_view text);
template <typename... Values>
void tell(fmt::format_string<Values...> format, Values&&... values) {
  tell_text(fmt::format(format, std::forward<Values>(values)...));
}

// For whoever does long work: a reader that goes away must not end it. Ctrl-C ends a `tee` behind a
// run at the moment in which the run begins to save itself.
void outlive_readers();

// Throws IoError where standard output did not take what a command has written: a file that was
// cut off must not look like a whole one.
void require_written_output();

}  // namespace strata::cli
