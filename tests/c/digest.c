/* The same bits at every level, for any number of threads, any split of the work, whatever is kept for backward and
 * however the sequences are laid out; and the same on every machine, which a file of digests records.
 *
 *   digest --levels                     prints the levels of this machine, best first
 *   digest --print                      prints the file, one line for each case and dtype
 *   digest [options] FILE               runs every case in every mode and compares
 *     --quick, --plain                  in some modes, in one
 *     --level NAME                      at one level only
 *
 * After a change of the numbers (which CHANGELOG must mention) the file is written anew by
 *   cmake -S . -B build/c -DRNNKERN_PYTHON=OFF -DRNNKERN_C_TESTS=ON && cmake --build build/c --target write_digests
 */
#include "problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    rnnkern_keep keep;
    int64_t segment;
} keeps[] = {{RNNKERN_KEEP_GATES, 1},    {RNNKERN_KEEP_STATES, 1},   {RNNKERN_KEEP_SEGMENTS, 1},
             {RNNKERN_KEEP_SEGMENTS, 3}, {RNNKERN_KEEP_SEGMENTS, 7}, {RNNKERN_KEEP_NONE, 1}};

static const struct {
    rnnkern_split split;
    int threads;
} teams[] = {{RNNKERN_SPLIT_AUTO, 1},  {RNNKERN_SPLIT_ROWS, 2}, {RNNKERN_SPLIT_UNITS, 2}, {RNNKERN_SPLIT_ROWS, 3},
             {RNNKERN_SPLIT_UNITS, 3}, {RNNKERN_SPLIT_AUTO, 4}, {RNNKERN_SPLIT_ROWS, 5},  {RNNKERN_SPLIT_UNITS, 5}};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

struct digests {
    uint64_t value[GROUPS];
    int given[GROUPS];
};

/* The mode in which the digests are first computed. */
static struct mode plain_mode(int level)
{
    return (struct mode){.level = level, .keep = RNNKERN_KEEP_GATES, .segment = 1, .threads = 1, .backward_threads = 1};
}

static struct digests digests_of(const struct problem *p, const struct mode *mode)
{
    struct pool pool = {NULL};
    struct digests d;
    const struct result r = run(&pool, p, mode);
    for (int g = 0; g < GROUPS; g++)
        d.value[g] = digest_of(p, &r, (enum group)g, &d.given[g]);
    pool_release(&pool);
    return d;
}

static struct digests inference_digests(const struct problem *p)
{
    struct mode mode = plain_mode(0);
    while (rnnkern_level_name(mode.level + 1)) /* the last is one that all machines have */
        mode.level++;
    mode.keep = RNNKERN_KEEP_NONE;
    return digests_of(p, &mode);
}

enum effort { PLAIN, QUICK, ALL };

/* Compares what `mode` computes: inference has fewer groups. */
static void compare(const struct spec *spec, const struct problem *p, const struct digests *want,
                    const struct mode *mode)
{
    const struct digests got = digests_of(p, mode);
    for (int g = 0; g < GROUPS; g++)
        CHECK(!got.given[g] || got.value[g] == want->value[g], "%s of case %s %s differs: %s", group_name[g],
              p->net.dtype == RNNKERN_FLOAT32 ? "float32" : "float64", spec->line, describe_mode(mode));
}

static void compare_modes(const struct spec *spec, const struct problem *p, const struct digests *want, int level,
                          int number, enum effort effort)
{
    const struct digests inference = has_masks(p) ? inference_digests(p) : *want; /* of which the file knows nothing */
    for (int k = 0; k < COUNT(keeps); k++)
        for (int t = 0; t < COUNT(teams); t++) {
            if (effort == QUICK && (k + number) % COUNT(teams) != t)
                continue;
            const struct mode mode = {.level = level,
                                      .keep = keeps[k].keep,
                                      .segment = keeps[k].segment,
                                      .threads = teams[t].threads,
                                      .backward_threads = teams[COUNT(teams) - 1 - t].threads,
                                      .split = teams[t].split,
                                      .rows_first = (k + t + number) % 2};
            compare(spec, p, mode.keep == RNNKERN_KEEP_NONE ? &inference : want, &mode);
        }
}

static void print_line(const struct spec *spec, const struct problem *p, int number, const struct digests *d)
{
    printf("%d %s %s :", number, p->net.dtype == RNNKERN_FLOAT32 ? "float32" : "float64", spec->line);
    for (int g = 0; g < GROUPS; g++)
        if (d->given[g])
            printf(" %016llx", (unsigned long long)d->value[g]);
        else
            printf(" -");
    printf("\n");
}

/* Reads the next line of the file, which must be that of this case. */
static struct digests read_line(FILE *file, const struct spec *spec, const struct problem *p, int number)
{
    char line[600], prefix[400];
    struct digests d = {.given = {0}};
    do
        if (!fgets(line, sizeof line, file))
            line[0] = 0;
    while (line[0] == '#');
    const int length = snprintf(prefix, sizeof prefix, "%d %s %s :", number,
                                p->net.dtype == RNNKERN_FLOAT32 ? "float32" : "float64", spec->line);
    CHECK(!strncmp(line, prefix, (size_t)length), "the file does not have the case %s", prefix);
    const char *word = line + length;
    for (int g = 0; g < GROUPS && *word == ' '; g++) {
        char *end;
        d.given[g] = word[1] != '-';
        d.value[g] = strtoull(word + 1, &end, 16);
        word = d.given[g] ? end : word + 2;
    }
    return d;
}

static void run_case(int number, rnnkern_dtype dtype, FILE *file, int only_level, enum effort effort)
{
    struct pool pool = {NULL};
    const struct spec spec = parse_case(case_table[number]);
    const struct problem p = make_problem(&pool, &spec, dtype, (uint64_t)number);
    if (file) {
        const struct digests want = read_line(file, &spec, &p, number);
        for (int level = 0; rnnkern_level_name(level); level++)
            if (rnnkern_level_supported(level) && (only_level < 0 || level == only_level)) {
                const struct mode plain = plain_mode(level);
                compare(&spec, &p, &want, &plain);
                if (effort > PLAIN)
                    compare_modes(&spec, &p, &want, level, number, effort);
            }
    } else {
        const struct mode plain = plain_mode(only_level);
        const struct digests d = digests_of(&p, &plain);
        print_line(&spec, &p, number, &d);
    }
    CHECK(pool_intact(&pool), "a guard zone around an input was written to: case %s", spec.line);
    pool_release(&pool);
}

static int level_named(const char *name)
{
    for (int level = 0; rnnkern_level_name(level); level++)
        if (!strcmp(rnnkern_level_name(level), name) && rnnkern_level_supported(level))
            return level;
    fprintf(stderr, "this machine has no level %s\n", name);
    exit(2);
}

static int print_levels(void)
{
    for (int level = 0; rnnkern_level_name(level); level++)
        if (rnnkern_level_supported(level))
            printf("%s\n", rnnkern_level_name(level));
    return 0;
}

int main(int argc, char **argv)
{
    int print = 0, level = -1;
    enum effort effort = ALL;
    const char *path = NULL;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--print"))
            print = 1;
        else if (!strcmp(argv[i], "--levels"))
            return print_levels();
        else if (!strcmp(argv[i], "--quick"))
            effort = QUICK;
        else if (!strcmp(argv[i], "--plain"))
            effort = PLAIN;
        else if (!strcmp(argv[i], "--level") && i + 1 < argc)
            level = level_named(argv[++i]);
        else
            path = argv[i];
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!print == !file) {
        fprintf(stderr, "usage: %s --levels | --print | [--quick | --plain] [--level NAME] FILE\n", argv[0]);
        return 2;
    }
    if (print) {
        level = level < 0 ? level_named("scalar") : level;
        printf("# What the kernels compute, on every machine and in every mode. Written by tests/c/digest.c, which "
               "says how;\n"
               "# tests/c/problem.h says what the inputs are and what a digest is.\n"
               "# seed dtype cell L D I H B T bias lengths resets restart hx dropout options : y hx_n dx dhx drestart "
               "grads\n");
    }
    for (int number = 0; case_table[number]; number++) {
        run_case(number, RNNKERN_FLOAT32, file, level, effort);
        run_case(number, RNNKERN_FLOAT64, file, level, effort);
    }
    if (file)
        fclose(file);
    if (!print)
        printf("%s: %d failures\n", path, failures());
    return failures() > 0;
}
