# fuseblock_build_info: build_info.h, with the version and the commit that the programs print.
set(build_info_folder ${PROJECT_BINARY_DIR}/build_info)
add_custom_target(fuseblock_write_build_info BYPRODUCTS ${build_info_folder}/build_info.h
  COMMAND ${CMAKE_COMMAND} -DOUT=${build_info_folder}/build_info.h -DSOURCE=${PROJECT_SOURCE_DIR}
          -DVERSION=${PROJECT_VERSION} -P ${CMAKE_CURRENT_LIST_DIR}/build_info.cmake
  VERBATIM)
add_library(fuseblock_build_info INTERFACE)
add_dependencies(fuseblock_build_info fuseblock_write_build_info)
target_include_directories(fuseblock_build_info INTERFACE ${build_info_folder})
