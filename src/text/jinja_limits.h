/* Bounds of the interpreter: templates come from files that nobody has read. */
#ifndef TEXT_JINJA_LIMITS_H
#define TEXT_JINJA_LIMITS_H

enum {
    JINJA_MAX_SOURCE = 4 << 20,      /* bytes of a template */
    JINJA_MAX_DEPTH = 150,           /* nesting of expressions, blocks, calls and values */
    JINJA_MAX_STEPS = 20 << 20,      /* nodes evaluated in one rendering */
    JINJA_MAX_RANGE = 100000,        /* elements of range() */
    JINJA_MAX_OUTPUT = 64 << 20,     /* bytes of a rendering */
    JINJA_MAX_MEMORY = 512 << 20     /* bytes of values in one rendering */
};

#endif
