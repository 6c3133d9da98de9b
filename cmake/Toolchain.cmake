# Compiler cache, linker, warnings and sanitizers. Nothing here changes results.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -O3 is for the kernels (src/strata/ops); elsewhere it only costs time to compile.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/cmake/cached_compiler ${CCACHE} ${CMAKE_SOURCE_DIR})
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()

find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wno-unused-parameter>)
if(STRATA_DEVELOPER)
  # gcc's: clang, which builds fuzzers and sanitizers, has other opinions.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Werror>)
endif()
if(STRATA_SANITIZE)
  # Lines for its messages, and little to compile: such a build finds, it is not fast.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  add_compile_options(-fsanitize=${STRATA_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${STRATA_SANITIZE})
  # An index beyond a span's end that stays within the allocation is no wrong address.
  add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>)
  # gcc 12 takes the standard library's own std::regex for uninitialised in an instrumented build.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  if(STRATA_SANITIZE STREQUAL "thread")
    # A fence of libtorch's that orders its Python objects, of which there are none.
    add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-tsan>)
  endif()
endif()
