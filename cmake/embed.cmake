# cmake -DINPUT=page.html -DOUTPUT=page.c -DNAME=ui_page -DHEADER=serve/ui/page.h -P embed.cmake: a file as a C array.
file(READ ${INPUT} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "(................................................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE ${OUTPUT} "#include \"${HEADER}\"\n\nconst unsigned char ${NAME}[] = {\n${hex}};\nconst size_t ${NAME}_bytes = ${bytes};\n")
