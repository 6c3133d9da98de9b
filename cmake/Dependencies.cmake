# Everything that Debian packages bring, as imported targets. tools/prepare installs the packages.
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CURL REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)

# debian_library(<target> PACKAGE <name> HEADER <path> [LIBRARY <name>]): <target> for a package that
# has no CMake files of its own. Without LIBRARY its headers alone. <NAME>_INCLUDE_DIR and
# <NAME>_LIBRARY name another place than the system's.
function(debian_library target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "PACKAGE;HEADER;LIBRARY" "")
  string(REGEX REPLACE "::.*" "" name ${target})
  string(TOUPPER ${name} prefix)
  find_path(${prefix}_INCLUDE_DIR ${ARG_HEADER})
  if(ARG_LIBRARY)
    find_library(${prefix}_LIBRARY ${ARG_LIBRARY})
  endif()
  if(NOT ${prefix}_INCLUDE_DIR)
    message(FATAL_ERROR "${name}: found no ${ARG_HEADER}; install ${ARG_PACKAGE}, or pass "
                        "-D${prefix}_INCLUDE_DIR=<folder>")
  elseif(ARG_LIBRARY AND NOT ${prefix}_LIBRARY)
    message(FATAL_ERROR "${name}: found no lib${ARG_LIBRARY}; install ${ARG_PACKAGE}, or pass "
                        "-D${prefix}_LIBRARY=<file>")
  endif()
  if(ARG_LIBRARY)
    add_library(${target} UNKNOWN IMPORTED)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${${prefix}_LIBRARY})
  else()
    add_library(${target} INTERFACE IMPORTED)
  endif()
  target_include_directories(${target} SYSTEM INTERFACE ${${prefix}_INCLUDE_DIR})
  mark_as_advanced(${prefix}_INCLUDE_DIR ${prefix}_LIBRARY)
endfunction()

debian_library(oniguruma::oniguruma PACKAGE libonig-dev HEADER oniguruma.h LIBRARY onig)
debian_library(utf8proc::utf8proc PACKAGE libutf8proc-dev HEADER utf8proc.h LIBRARY utf8proc)
debian_library(zstd::zstd PACKAGE libzstd-dev HEADER zstd.h LIBRARY zstd)
debian_library(xxhash::xxhash PACKAGE libxxhash-dev HEADER xxhash.h LIBRARY xxhash)
debian_library(uring::uring PACKAGE liburing-dev HEADER liburing.h LIBRARY uring)
# libtorch's headers of process groups include Gloo's, and its libraries hold the code.
debian_library(gloo::headers PACKAGE libgloo-dev HEADER gloo/context.h)
