// What ends the program where a file that is mapped into memory cannot be read any more: it was cut
// off by another program, or its disk failed. Never: prevents that.
#pragma once

#include <string>

namespace strata::cli {

// From here on SIGBUS is followed by an error that names the file, on standard error after
// `label`; the signal then ends the program as it does by default. Once, before there are threads.
void name_file_of_bus_error(std::string label);

}  // namespace strata::cli
