#include "strata/cli/command.h"

int main(int argc, char** argv) { return strata::cli::run(argc, argv); }
