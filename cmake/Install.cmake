# Libraries in the install tree: find_package(fuseblock), and link fuseblock::kernels, which is used
# without the server, or with COMPONENTS client fuseblock::client. The programs are installed where
# they are declared.
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/fuseblock)
set(headers ${CMAKE_INSTALL_INCLUDEDIR}/fuseblock)

# install_targets(SET TARGET...): the package's file SET.cmake has the targets, without their prefix.
function(install_targets set)
  foreach(target ${ARGN})
    string(REPLACE fuseblock_ "" name ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  endforeach()
  install(TARGETS ${ARGN} EXPORT ${set} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ${set} NAMESPACE fuseblock:: DESTINATION ${package})
endfunction()

target_include_directories(fuseblock_options INTERFACE $<INSTALL_INTERFACE:${headers}>)
install_targets(fuseblock fuseblock_options fuseblock_kernels_base fuseblock_kernels)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/kernels
  DESTINATION ${headers} FILES_MATCHING PATTERN "*.h" PATTERN "*-inl.h" EXCLUDE)

if(FUSEBLOCK_SERVER)
  target_include_directories(fuseblock_proto SYSTEM INTERFACE $<INSTALL_INTERFACE:${headers}>)
  install_targets(fuseblock_client fuseblock_client fuseblock_proto)
  install(FILES ${PROJECT_SOURCE_DIR}/client/cpp/client.h DESTINATION ${headers}/client/cpp)
  install(FILES ${PROJECT_BINARY_DIR}/proto/fuseblock/v1/block_service.pb.h
    DESTINATION ${headers}/fuseblock/v1)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fuseblockConfig.cmake.in
  ${PROJECT_BINARY_DIR}/fuseblockConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fuseblockConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fuseblockConfig.cmake
  ${PROJECT_BINARY_DIR}/fuseblockConfigVersion.cmake DESTINATION ${package})
