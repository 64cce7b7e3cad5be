# The programs. A main() lives in a folder of its own (stages/bin, runtime/bin) or in tools/, never in a room's library.
file(GLOB tool_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/*.c)
if(EXISTS ${CMAKE_SOURCE_DIR}/stages/bin/stage_cpu.c)
  program(ebbtide-stage-cpu stages/bin/stage_cpu.c stages PkgConfig::HWLOC)
  target_sources(ebbtide-stage-cpu PRIVATE stages/bin/processors.c)
endif()
if(EXISTS ${CMAKE_SOURCE_DIR}/runtime/bin/ebbtide.c)
  program(ebbtide runtime/bin/ebbtide.c runtime)
  # The manual page and the completion are what the program says of itself.
  install(CODE "
    execute_process(COMMAND $<TARGET_FILE:ebbtide> help --man OUTPUT_FILE ${CMAKE_BINARY_DIR}/ebbtide.1
                    COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND $<TARGET_FILE:ebbtide> help --completion OUTPUT_FILE ${CMAKE_BINARY_DIR}/ebbtide.bash
                    COMMAND_ERROR_IS_FATAL ANY)")
  install(FILES ${CMAKE_BINARY_DIR}/ebbtide.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${CMAKE_BINARY_DIR}/ebbtide.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          RENAME ebbtide)
endif()
# What the tools share: their flags, the conversation with an engine, tables and JSON.
room(toolkit tools/kit)
target_link_libraries(toolkit PUBLIC protocol PkgConfig::JANSSON)
foreach(source ${tool_sources})
  get_filename_component(tool ${source} NAME_WE)
  program(ebbtide-${tool} ${source} toolkit)
endforeach()
# Random models: the library, because ebbtide-bench makes some too.
file(GLOB make_model_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/make-model/*.c)
add_library(makemodel STATIC ${make_model_sources})
target_link_libraries(makemodel PUBLIC model Threads::Threads m)
target_include_directories(makemodel PUBLIC ${CMAKE_SOURCE_DIR})
target_link_libraries(ebbtide-make-model PRIVATE makemodel)
file(GLOB bench_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/bench/*.c)
list(FILTER bench_sources EXCLUDE REGEX "_cuda\\.c$") # cmake/cuda.cmake
target_sources(ebbtide-bench PRIVATE ${bench_sources})
target_link_libraries(ebbtide-bench PRIVATE makemodel kernels vmm m)
# What runs a command on lent memory.
target_sources(ebbtide-vram PRIVATE tools/vram/lend.c)
# The live view: its picture is a library of its own, which knows no terminal.
room(topview tools/top)
target_link_libraries(topview PUBLIC protocol PkgConfig::JANSSON PkgConfig::NCURSES m)
target_link_libraries(ebbtide-top PRIVATE topview)
# The hand-over to ComfyUI.
file(GLOB handoff_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/comfy-handoff/*.c)
target_sources(ebbtide-comfy-handoff PRIVATE ${handoff_sources})
target_link_libraries(ebbtide-comfy-handoff PRIVATE PkgConfig::CURL m)
