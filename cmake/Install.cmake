# The kernels in the install tree, as a library that is used without the server: find_package(fuseblock)
# and link fuseblock::kernels. The programs are installed where they are declared.
include(CMakePackageConfigHelpers)

set_target_properties(fuseblock_options PROPERTIES EXPORT_NAME options)
set_target_properties(fuseblock_kernels PROPERTIES EXPORT_NAME kernels)
set_target_properties(fuseblock_kernels_base PROPERTIES EXPORT_NAME kernels_base)
target_include_directories(fuseblock_options INTERFACE
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/fuseblock>)
install(TARGETS fuseblock_options fuseblock_kernels_base fuseblock_kernels EXPORT fuseblock
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/kernels
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fuseblock FILES_MATCHING PATTERN "*.h" PATTERN "*-inl.h" EXCLUDE)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/fuseblock)
install(EXPORT fuseblock NAMESPACE fuseblock:: DESTINATION ${package})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fuseblockConfig.cmake.in
  ${PROJECT_BINARY_DIR}/fuseblockConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fuseblockConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fuseblockConfig.cmake
  ${PROJECT_BINARY_DIR}/fuseblockConfigVersion.cmake DESTINATION ${package})
