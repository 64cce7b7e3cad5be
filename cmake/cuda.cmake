# The CUDA halves of the rooms and ebbtide-stage-cuda: built where nvcc is found (EBBTIDE_CUDA). libcuda is not linked: the static
# runtime finds the driver when the program runs, so the stage starts on a machine without one and says so.
include(CheckLanguage)
if(EBBTIDE_CUDA STREQUAL "OFF" OR EBBTIDE_SANITIZE)
  return()
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(EBBTIDE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "EBBTIDE_CUDA is ON, and nvcc is not found: put it on PATH or set CMAKE_CUDA_COMPILER")
  endif()
  message(STATUS "no nvcc: ebbtide-stage-cuda is not built")
  return()
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90-real 120)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 17)

file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*.cu)
add_library(kernels_cuda STATIC ${kernel_sources} ${CMAKE_SOURCE_DIR}/kernels/exec_cuda.c ${CMAKE_SOURCE_DIR}/kernels/set_cuda.c)
target_include_directories(kernels_cuda PUBLIC ${CMAKE_SOURCE_DIR})
# Exactness (NUMERICS): as for C, nothing is contracted, no subnormal is flushed, division and roots are IEEE.
set_source_files_properties(${kernel_sources} PROPERTIES COMPILE_OPTIONS
  "-fmad=false;-ftz=false;-prec-div=true;-prec-sqrt=true;-lineinfo;-Xcompiler=-ffp-contract=off;--expt-relaxed-constexpr")
target_compile_definitions(kernels_cuda PRIVATE $<$<CONFIG:Debug>:EBBTIDE_CHECK_LAUNCHES>)
target_link_libraries(kernels_cuda PUBLIC kernels CUDA::cudart_static ${CMAKE_DL_LIBS} rt)

add_library(vmm_cuda STATIC ${CMAKE_SOURCE_DIR}/vmm/driver_cuda.c)
target_include_directories(vmm_cuda PUBLIC ${CMAKE_SOURCE_DIR})
target_link_libraries(vmm_cuda PUBLIC vmm CUDA::cudart_static ${CMAKE_DL_LIBS} rt)

if(EXISTS ${CMAKE_SOURCE_DIR}/stages/bin/stage_cuda.c)
  program(ebbtide-stage-cuda stages/bin/stage_cuda.c stages kernels_cuda vmm_cuda)
  target_sources(ebbtide-bench PRIVATE ${CMAKE_SOURCE_DIR}/tools/bench/card_cuda.c)
  target_link_libraries(ebbtide-bench PRIVATE kernels_cuda vmm_cuda)
  # It was made before CUDA was enabled.
  set_target_properties(ebbtide-bench PROPERTIES CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
endif()
