#include "check.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define FORBID(at, bytes) __asan_poison_memory_region(at, bytes)
#define ALLOW(at, bytes) __asan_unpoison_memory_region(at, bytes)
#else
#define FORBID(at, bytes) ((void)0)
#define ALLOW(at, bytes) ((void)0)
#endif

#define GUARD_VALUE 0xA5
#define ALIGNMENT 64
#define MAX_REPORTS 20

static atomic_int failed;

void check_failed(const char *file, int line, const char *condition, const char *format, ...)
{
    const int before = atomic_fetch_add(&failed, 1);
    if (before >= MAX_REPORTS)
        return;
    char text[1000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s:%d: %s (%s)\n", file, line, text, condition);
    if (before == MAX_REPORTS - 1)
        fprintf(stderr, "further failures are only counted\n");
}

int failures(void) { return atomic_load(&failed); }

struct guarded {
    struct guarded *next;
    unsigned char *memory, *block; /* memory, guard zone, block, guard zone */
    size_t bytes;
};

void *pool_take_unaligned(struct pool *pool, size_t bytes, size_t by)
{
    struct guarded *g = malloc(sizeof *g);
    unsigned char *memory = malloc(bytes + by + ALIGNMENT + 2 * GUARD_BYTES);
    if (!g || !memory) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(2);
    }
    const uintptr_t first = (uintptr_t)memory + GUARD_BYTES;
    *g = (struct guarded){.next = pool->first, .memory = memory, .bytes = bytes};
    g->block = memory + GUARD_BYTES + (ALIGNMENT - first % ALIGNMENT) % ALIGNMENT + by;
    pool->first = g;
    memset(g->block - GUARD_BYTES, GUARD_VALUE, GUARD_BYTES);
    memset(g->block, 0, bytes);
    memset(g->block + bytes, GUARD_VALUE, GUARD_BYTES);
    FORBID(g->block - GUARD_BYTES, GUARD_BYTES);
    FORBID(g->block + bytes, GUARD_BYTES);
    return g->block;
}

void *pool_take(struct pool *pool, size_t bytes) { return pool_take_unaligned(pool, bytes, 0); }

static int untouched(const unsigned char *guard)
{
    ALLOW(guard, GUARD_BYTES);
    int good = 1;
    for (int i = 0; i < GUARD_BYTES; i++)
        good &= guard[i] == GUARD_VALUE;
    FORBID(guard, GUARD_BYTES);
    return good;
}

int pool_intact(const struct pool *pool)
{
    int good = 1;
    for (const struct guarded *g = pool->first; g; g = g->next)
        good &= untouched(g->block - GUARD_BYTES) & untouched(g->block + g->bytes);
    return good;
}

void pool_release(struct pool *pool)
{
    for (struct guarded *g = pool->first, *next; g; g = next) {
        next = g->next;
        ALLOW(g->block - GUARD_BYTES, GUARD_BYTES + g->bytes + GUARD_BYTES);
        free(g->memory);
        free(g);
    }
    pool->first = NULL;
}

void fill_block(void *block, size_t bytes, enum fill fill, size_t item)
{
    const uint32_t single = 0x7FA5A5A5u;
    const uint64_t twice = 0x7FF5A5A5A5A5A5A5u;
    if (fill == UNWRITTEN)
        memset(block, 0xFF, bytes);
    else
        for (size_t i = 0; i + item <= bytes; i += item)
            memcpy((char *)block + i, item == sizeof single ? (const void *)&single : &twice, item);
}
