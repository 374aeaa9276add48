# dsa_kernels_embed(TARGET app ARCH sm90 [OPS op...] [PACKS folder])
#
# Links the pack of an architecture into `app`, so that one file deploys. OPS keeps only these ops and their objects; without it
# the whole pack goes in. PACKS is the folder that holds the packs; without it $DSA_KERNELS_PACKS, which must name one. In `app`:
#
#   #include <dsa_kernels_sm90.h>
#   const dsak_embedded_pack* embedded[] = {&dsa_kernels_sm90};
#   options.embedded = embedded;
#   options.num_embedded = 1;
#
# Objects are checked as those of a folder are: size, sha256 and architecture, before a driver sees them.
function(dsa_kernels_embed)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "TARGET;ARCH;PACKS" "OPS")
  if(arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES OR NOT arg_TARGET OR NOT arg_ARCH)
    message(FATAL_ERROR "dsa_kernels_embed: found ${ARGN}, wanted TARGET app ARCH name [OPS op...] [PACKS folder]")
  endif()
  if(NOT TARGET ${arg_TARGET})
    message(FATAL_ERROR "dsa_kernels_embed: found no target ${arg_TARGET}, wanted one made by add_executable or add_library before")
  endif()
  get_target_property(embedded ${arg_TARGET} DSA_KERNELS_EMBEDDED)
  if(arg_ARCH IN_LIST embedded)
    message(FATAL_ERROR "dsa_kernels_embed: found ${arg_ARCH} in ${arg_TARGET} already, wanted one call for each architecture; name all OPS in it")
  endif()
  set_property(TARGET ${arg_TARGET} APPEND PROPERTY DSA_KERNELS_EMBEDDED ${arg_ARCH})
  if(NOT arg_PACKS)
    set(arg_PACKS "$ENV{DSA_KERNELS_PACKS}")
  endif()
  get_filename_component(pack "${arg_PACKS}/${arg_ARCH}" ABSOLUTE)
  if(NOT EXISTS "${pack}/manifest.json")
    message(FATAL_ERROR "dsa_kernels_embed: found no ${pack}/manifest.json; build packs (python -m aot.build --arch ${arg_ARCH}) "
                        "and name their folder with PACKS")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${pack}/manifest.json")
  file(READ "${pack}/manifest.json" manifest)

  # Leave out the other ops, the last one first, and the objects that nobody launches any more.
  string(JSON ops GET "${manifest}" ops)
  string(JSON count LENGTH "${ops}")
  set(found "")
  set(launched "")
  foreach(i RANGE 1 ${count})
    math(EXPR at "${count} - ${i}")
    string(JSON op GET "${ops}" ${at})
    string(JSON name GET "${op}" name)
    if(arg_OPS AND NOT name IN_LIST arg_OPS)
      string(JSON ops REMOVE "${ops}" ${at})
      continue()
    endif()
    list(APPEND found ${name})
    string(JSON kernels LENGTH "${op}" kernels)
    foreach(k RANGE 1 ${kernels})
      math(EXPR k "${k} - 1")
      string(JSON digest GET "${op}" kernels ${k} object)
      list(APPEND launched ${digest})
    endforeach()
  endforeach()
  foreach(name IN LISTS arg_OPS)
    if(NOT name IN_LIST found)
      message(FATAL_ERROR "dsa_kernels_embed: found no op ${name} in ${pack}, wanted ops that the pack has; check OPS")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES launched)
  string(JSON all GET "${manifest}" objects)
  set(objects "{}")
  set(files "manifest.json")
  foreach(digest IN LISTS launched)
    string(JSON object GET "${all}" ${digest})
    string(JSON objects SET "${objects}" ${digest} "${object}")
    string(JSON file GET "${object}" file)
    list(APPEND files ${file})
  endforeach()
  string(JSON manifest SET "${manifest}" ops "${ops}")
  string(JSON manifest SET "${manifest}" objects "${objects}")

  # A source whose assembler takes the files in, and the header that declares what it holds.
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/dsa_kernels_embed/${arg_TARGET}")
  string(MAKE_C_IDENTIFIER "dsa_kernels_${arg_ARCH}" symbol)
  file(CONFIGURE OUTPUT "${folder}/manifest.${arg_ARCH}.json" CONTENT "@manifest@" @ONLY)
  set(declarations "")
  set(table "")
  set(depends "")
  set(number 0)
  foreach(name IN LISTS files)
    set(path "${pack}/${name}")
    if(name STREQUAL "manifest.json")
      set(path "${folder}/manifest.${arg_ARCH}.json")
    endif()
    file(SIZE "${path}" size)
    set(data "${symbol}_file${number}")
    string(APPEND declarations
           "__asm__(\".pushsection .rodata\\n.balign 16\\n.globl ${data}\\n.hidden ${data}\\n${data}:\\n.incbin \\\"${path}\\\"\\n.popsection\\n\");\n"
           "extern \"C\" const unsigned char ${data}[];\n")
    string(APPEND table "  {\"${name}\", ${data}, ${size}},\n")
    list(APPEND depends "${path}")
    math(EXPR number "${number} + 1")
  endforeach()
  string(CONCAT text "// The ${arg_ARCH} pack, made by dsa_kernels_embed.\n#include \"${symbol}.h\"\n\n${declarations}\n"
           "static const dsak_file files[] = {\n${table}};\n"
           "extern \"C\" const dsak_embedded_pack ${symbol} = {\"${arg_ARCH}\", files, ${number}};\n")
  file(CONFIGURE OUTPUT "${folder}/${symbol}.cpp" CONTENT "@text@" @ONLY)
  string(CONCAT text "// The ${arg_ARCH} pack that is part of this program.\n#pragma once\n#include <dsa_kernels.h>\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n"
         "extern const dsak_embedded_pack ${symbol};\n#ifdef __cplusplus\n}\n#endif\n")
  file(CONFIGURE OUTPUT "${folder}/${symbol}.h" CONTENT "@text@" @ONLY)
  set_source_files_properties("${folder}/${symbol}.cpp" TARGET_DIRECTORY ${arg_TARGET} PROPERTIES OBJECT_DEPENDS "${depends}"
                              COMPILE_OPTIONS -fno-lto)  # which does not see names that only the assembler knows
  target_sources(${arg_TARGET} PRIVATE "${folder}/${symbol}.cpp")
  target_include_directories(${arg_TARGET} PRIVATE "${folder}")
endfunction()
