# Compile options shared by every target, and the two functions that declare one.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# The bundle runs from any folder: libraries are found beside the programs.
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(fuseblock_options INTERFACE)
# -ffp-contract=off: a sum's bits must not depend on what the optimiser fuses; kernels ask for FMA by name.
target_compile_options(fuseblock_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -ffp-contract=off>)
target_include_directories(fuseblock_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
if(FUSEBLOCK_WERROR)
  target_compile_options(fuseblock_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(FUSEBLOCK_SANITIZER)
  target_compile_options(fuseblock_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FUSEBLOCK_SANITIZER} -fno-omit-frame-pointer>)
  target_link_options(fuseblock_options INTERFACE -fsanitize=${FUSEBLOCK_SANITIZER})
endif()

# fuseblock_library(name SOURCES a.cc ... LINK x ...): a static library with the project's options.
function(fuseblock_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC fuseblock_options ${ARG_LINK})
endfunction()

# fuseblock_test(name SOURCES a.cc ... LINK x ... LABELS unit): one gtest program, a test of ctest. The
# target tests_<label> builds all of a label.
function(fuseblock_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE fuseblock_options ${ARG_LINK} GTest::gmock GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600)
  foreach(label ${ARG_LABELS})
    fuseblock_group(tests_${label} ${name})
  endforeach()
endfunction()

# fuseblock_group(group target): a target that builds all its members.
function(fuseblock_group group target)
  if(NOT TARGET ${group})
    add_custom_target(${group})
  endif()
  add_dependencies(${group} ${target})
endfunction()

# fuseblock_fuzz(name SOURCES a.cc ... LINK x ...): a program around LLVMFuzzerTestOneInput. With the
# preset `fuzz` (Clang) it searches for inputs; in every other build it is a test that replays the
# corpus in tests/fuzz/corpus/<name>, so that an input that once broke something stays checked.
function(fuseblock_fuzz name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE fuseblock_options ${ARG_LINK})
  fuseblock_group(fuzz_targets ${name})
  if(FUSEBLOCK_SANITIZER MATCHES "fuzzer")
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/replay.cc)
    add_test(NAME ${name} COMMAND ${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
    set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 600)
  endif()
endfunction()
