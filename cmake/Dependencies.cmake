# Libraries from Debian packages. tools/prepare installs them by name.
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(GTest)
find_library(ONIGURUMA_LIBRARY onig REQUIRED)
find_library(UTF8PROC_LIBRARY utf8proc REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
find_path(GLOO_INCLUDE_DIR gloo/context.h REQUIRED)
