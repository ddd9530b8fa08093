# Flags every file of the project is compiled with.
add_library(apr_flags INTERFACE)
target_compile_definitions(apr_flags INTERFACE _GNU_SOURCE APR_VERSION="${PROJECT_VERSION}")
target_compile_options(apr_flags INTERFACE
  -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes -Wpointer-arith -Wformat=2 -Wno-format-nonliteral
  -Werror -fno-common -ffp-contract=off -fno-strict-aliasing -fstack-protector-strong)
if(CMAKE_C_COMPILER_ID STREQUAL GNU)
  target_compile_options(apr_flags INTERFACE -Wno-format-truncation)
endif()
if(APR_SANITIZE)
  target_compile_options(apr_flags INTERFACE -fsanitize=${APR_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(apr_flags INTERFACE -fsanitize=${APR_SANITIZE})
endif()
if(APR_FUZZ)
  target_compile_options(apr_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
