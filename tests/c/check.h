/* What a test program needs: conditions, and memory with guard zones. */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <stddef.h>
#include <stdint.h>

/* Counts a failure and prints where and what; the program goes on. */
#define CHECK(condition, ...) ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, #condition, __VA_ARGS__))
__attribute__((format(printf, 4, 5))) void check_failed(const char *file, int line, const char *condition,
                                                        const char *format, ...);
int failures(void);

/* What blocks hold before a call. Both are NaN in either type; read as an index, garbage crashes. */
enum fill {
    UNWRITTEN, /* bytes 0xFF: for outputs */
    GARBAGE    /* signalling NaN of the element size: for tape and workspace */
};

/* Blocks of one owner, which one thread uses. Each lies between two guard zones of GUARD_BYTES: nobody may write there,
 * and under AddressSanitizer nobody may read there. */
#define GUARD_BYTES 512
struct pool {
    struct guarded *first;
};
void *pool_take(struct pool *pool, size_t bytes);                      /* zeroed; 64 byte aligned */
void *pool_take_unaligned(struct pool *pool, size_t bytes, size_t by); /* `by` bytes behind a 64 byte border */
int pool_intact(const struct pool *pool);                              /* are all guard zones as they were? */
void pool_release(struct pool *pool);

void fill_block(void *block, size_t bytes, enum fill fill, size_t item);

#endif
