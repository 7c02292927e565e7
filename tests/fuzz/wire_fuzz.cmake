# The wire parser against protobuf, on whatever comes.
fuseblock_fuzz(wire_fuzz SOURCES ${CMAKE_CURRENT_LIST_DIR}/wire_fuzz.cc
  LINK fuseblock_codec fuseblock_proto fuseblock_wire)
