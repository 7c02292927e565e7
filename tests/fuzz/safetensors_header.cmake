# The safetensors header: the first untrusted bytes that a load meets.
if(TARGET fuseblock_safetensors)
  fuseblock_fuzz(safetensors_header_fuzz
    SOURCES ${PROJECT_SOURCE_DIR}/tests/fuzz/safetensors_header_fuzz.cc LINK fuseblock_safetensors)
endif()
