// Entry point: hands argv to the command line and returns its exit code.
#include "strata/cli/command.h"

int main(int argc, char** argv) { return strata::cli::run(argc, argv); }
