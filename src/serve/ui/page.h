/* page.html as it is sent: the build turns the file into this array. */
#ifndef SERVE_UI_PAGE_H
#define SERVE_UI_PAGE_H

#include <stddef.h>

extern const unsigned char ui_page[];
extern const size_t ui_page_bytes;

#endif
