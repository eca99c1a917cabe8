/* The packed matrix multiply. It knows nothing of gates.
 *
 * A packed matrix is [panel][k][columns of the panel][16]: panel p holds, for each k, `ns` vectors of 16 lanes. A lane
 * is a hidden unit (or an input feature, for dx), a vector a slot of the cell. One register tile computes, for up to
 * MAX_ROWS rows, all vectors of a panel, so that the activations of 16 units can follow while the tile is in L1:
 *
 *            k ->            b: panel p            c: [row][ns][16]
 *   row 0  a a a a ...      k=0 [ns][16]           start + sum over k of a[row][k] * b[k][:][:]
 *   row 1  a a a a ...      k=1 [ns][16]
 *
 * Every element of C is one chain of fma in the order of k, whatever the tile: this makes the result independent of
 * batch, threads and vector width. Blocking k may store and reload the partial sum, never split it.
 */
#ifndef RK_GEMM_H
#define RK_GEMM_H

#define LANES 16       /* of a panel, at every level and dtype */
#define TILE_COLUMNS 4 /* vectors of a register tile */
#define MAX_COLUMNS 8  /* of a tile of one row and short k, where four sums would wait for each other */
#define SHORT_K 256
#define PREFETCHED 8 /* elements of k ahead, where a tile has multiplications enough to pay for it */
#define K_BLOCK 2048 /* of a product over gate rows */
#define BLOCK_ROWS \
    1024             /* of a step that are taken through all panels at a time, so that a panel of theirs stays in L2 */
#define RUN_ROWS 256 /* rows that are summed from zero before they join the weight gradient's total */

/* first..last-1, of panels, tiles or elements */
struct range {
    int64_t first, last;
};

static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* The k range of a product: `count` pieces of `length` consecutive elements, `stride` apart, then `tails` pieces of
 * `tail_length`, LANES apart. The forward product has one piece; over gate rows each panel is a piece, and the last
 * panel of an H that 16 does not divide has one short piece a slot, so that padding lanes never enter a product. */
struct krange {
    int64_t count, length, stride, tails, tail_length;
};

static inline struct krange krange_dense(int64_t k) { return (struct krange){1, k, 0, 0, 0}; }

static inline struct krange krange_gates(int64_t hidden, int slots, int64_t panel_stride)
{
    int64_t tail = hidden % LANES;
    return (struct krange){hidden / LANES, slots * LANES, panel_stride, tail ? slots : 0, tail};
}

/* C tile of mr x nv vectors; mr and nv are constants at each call. a, c and from are row pointers. The tile's column j lies
 * at offset b_column[j] of b, which advances b_step per k, and at c_column[j] of the rows c and from. Its first `lanes`
 * exist; it starts from the vector `start`, or where that is NULL from the rows `from`. The result goes to C, or is added
 * to it. */
struct tile {
    const real *const *a;
    real *const *c, *const *from;
    int64_t a_offset;
    struct krange k;
    const real *b;
    int64_t b_step, b_column[MAX_COLUMNS], c_column[MAX_COLUMNS], lanes[MAX_COLUMNS];
    const real *start[MAX_COLUMNS];
    int add;
};

#define UNROLL _Pragma("GCC unroll 8") /* or the accumulators would live in memory */

ALWAYS_INLINE void tile_body(const struct tile *t, const int mr, const int nv)
{
    vec acc[MAX_ROWS][MAX_COLUMNS];
    const real *a[MAX_ROWS], *b[MAX_COLUMNS];
    UNROLL
    for (int m = 0; m < mr; m++)
        a[m] = t->a[m] + t->a_offset;
    UNROLL
    for (int j = 0; j < nv; j++) {
        const int64_t column = t->c_column[j];
        b[j] = t->b + t->b_column[j];
        if (t->start[j]) {
            const vec start = v_load(t->start[j]);
            UNROLL
            for (int m = 0; m < mr; m++)
                acc[m][j] = start;
        } else if (t->lanes[j] == VL) {
            UNROLL
            for (int m = 0; m < mr; m++)
                acc[m][j] = v_load(t->from[m] + column);
        } else {
            UNROLL
            for (int m = 0; m < mr; m++)
                acc[m][j] = v_load_n(t->from[m] + column, t->lanes[j]);
        }
    }
    const int64_t b_step = t->b_step, pieces = t->k.count + t->k.tails;
    int64_t kb = 0;
    for (int64_t piece = 0; piece < pieces; piece++) {
        int full = piece < t->k.count;
        int64_t ka = full ? piece * t->k.stride : t->k.count * t->k.stride + (piece - t->k.count) * LANES;
        const int64_t end = ka + (full ? t->k.length : t->k.tail_length);
        for (; ka < end; ka++, kb += b_step) {
            vec bj[MAX_COLUMNS];
            UNROLL
            for (int j = 0; j < nv; j++)
                bj[j] = v_load(b[j] + kb);
            UNROLL
            for (int j = 0; mr > 3 && j < nv; j++)
                __builtin_prefetch(b[j] + kb + PREFETCHED * b_step);
            UNROLL
            for (int m = 0; m < mr; m++) {
                vec am = v_set1(a[m][ka]);
                UNROLL
                for (int j = 0; j < nv; j++)
                    acc[m][j] = v_fma(am, bj[j], acc[m][j]);
            }
        }
    }
    UNROLL
    for (int j = 0; j < nv; j++) {
        const int64_t column = t->c_column[j];
        if (t->add) {
            UNROLL
            for (int m = 0; m < mr; m++)
                v_store(t->c[m] + column, v_add(v_load(t->c[m] + column), acc[m][j]));
        } else if (t->lanes[j] == VL) {
            UNROLL
            for (int m = 0; m < mr; m++)
                v_store(t->c[m] + column, acc[m][j]);
        } else {
            UNROLL
            for (int m = 0; m < mr; m++)
                v_store_n(t->c[m] + column, t->lanes[j], acc[m][j]);
        }
    }
}

/* One compiled instance for each number of rows and columns. */
static void tile_run(const struct tile *t, int mr, int nv)
{
    switch (mr * (MAX_COLUMNS + 1) + nv) {
#define INSTANCE(mr, nv)             \
    case mr *(MAX_COLUMNS + 1) + nv: \
        tile_body(t, mr, nv);        \
        return;
#define INSTANCES(mr) INSTANCE(mr, 1) INSTANCE(mr, 2) INSTANCE(mr, 3) INSTANCE(mr, 4)
        INSTANCES(1)
        INSTANCE(1, 5)
        INSTANCE(1, 6)
        INSTANCE(1, 7)
        INSTANCE(1, 8)
        INSTANCES(2)
#if MAX_ROWS > 2
        INSTANCES(3)
#endif
#if MAX_ROWS > 3
        INSTANCES(4)
        INSTANCES(5)
        INSTANCES(6)
#endif
#undef INSTANCES
#undef INSTANCE
    }
}

/* C[i][columns of panel p] = start + sum over k of A[i][k] * B[k][columns of panel p]. */
struct product {
    int64_t rows;
    const real *const *a;
    int64_t a_offset;
    struct krange k;
    const real *b; /* packed: [panel][k_total][ns][16] */
    int64_t k_total;
    int ns;
    real *const *c;
    int64_t c_offset, c_panel; /* of the first vector of panel p: c_offset + p*c_panel */
    int64_t width;             /* units of all panels; lanes behind it are not touched */
    const real *bias;          /* [panel][bias_panel] */
    int64_t bias_panel;
    int cont; /* the first `cont` vectors of a panel continue from C */
    int turned;
};

static inline struct product product_of_rows(const struct product *g, int64_t first, int64_t n)
{
    struct product some = *g;
    some.rows = n;
    some.a += first;
    some.c += first;
    return some;
}

static inline int64_t groups_of(struct range panels, int64_t size)
{
    return (panels.last - panels.first + size - 1) / size;
}

/* The i-th group. A matrix too large for a cache is read over and over, once a step. Read from one end to the other it would
 * have left the cache before it comes again; in turns, forwards and backwards, the part that was read last is there. */
static inline struct range turned_group(struct range panels, int64_t size, int64_t i, int turned)
{
    const int64_t first = panels.first + (turned ? groups_of(panels, size) - 1 - i : i) * size;
    return (struct range){first, min_of(panels.last, first + size)};
}

static inline int64_t clamp_lanes(int64_t n) { return max_of(0, min_of(n, VL)); }
static inline int64_t panels_of(int64_t units) { return (units + LANES - 1) / LANES; }

/* A panel is `ns` slots of VECTORS vectors, which lie one behind the other: a tile takes some of them, or those of several
 * narrow panels. */
#define VECTORS (LANES / VL)

static inline int tile_columns(const struct product *g)
{
    return g->rows == 1 && g->k_total <= SHORT_K ? MAX_COLUMNS : TILE_COLUMNS;
}

static inline int panels_per_tile(int ns, int columns) { return (int)max_of(1, columns / (ns * VECTORS)); }

/* The place of a vector in panels of ns slots; columns of a tile follow one another. */
struct place {
    int64_t panel;
    int slot, lane;
};

static inline void next_place(struct place *at, int ns)
{
    at->lane += VL;
    if (at->lane < LANES)
        return;
    at->lane = 0;
    if (++at->slot < ns)
        return;
    at->slot = 0;
    at->panel++;
}

static const real zeros[VL];

/* For all rows; all of the panels side by side in a tile, where they fit. */
static void product_panels(const struct product *g, struct range panels)
{
    const int vectors = (int)(panels.last - panels.first) * g->ns * VECTORS, most = tile_columns(g),
              columns = (vectors + most - 1) / most;
    const int64_t tiles = (g->rows + MAX_ROWS - 1) / MAX_ROWS;
    struct place at = {.panel = panels.first};
    for (int n = 0, begin = 0, end; n < columns; n++, begin = end) {
        end = vectors * (n + 1) / columns;
        struct tile t = {.a_offset = g->a_offset, .k = g->k, .b = g->b, .b_step = g->ns * LANES};
        for (int j = 0; j < end - begin; j++, next_place(&at, g->ns)) {
            const int64_t lane = at.slot * LANES + at.lane;
            t.b_column[j] = at.panel * g->k_total * g->ns * LANES + lane;
            t.c_column[j] = g->c_offset + at.panel * g->c_panel + lane;
            t.lanes[j] = clamp_lanes(g->width - at.panel * LANES - at.lane);
            t.start[j] = at.slot < g->cont ? NULL : g->bias ? g->bias + at.panel * g->bias_panel + lane : zeros;
        }
        for (int64_t m = 0, i = 0, next; m < tiles; m++, i = next) { /* rows spread evenly: 16 rows are 6, 5 and 5 */
            next = g->rows * (m + 1) / tiles;
            t.a = g->a + i;
            t.c = t.from = g->c + i;
            for (int64_t q = next; q < min_of(g->rows, next + MAX_ROWS); q++) /* the next tile's */
                for (int j = 0; j < end - begin; j++)
                    __builtin_prefetch(g->c[q] + t.c_column[j], 1);
            tile_run(&t, (int)(next - i), end - begin);
        }
    }
}

/* Over gate rows k can be so long that a tile's panels leave L2 before the next rows need them, hence the blocks. */
static void product_run(const struct product *g, struct range panels)
{
    const int64_t block = g->k.count > 1 && g->rows > MAX_ROWS ? K_BLOCK / g->k.length : max_of(1, g->k.count);
    const int64_t size = panels_per_tile(g->ns, tile_columns(g));
    struct product part = *g;
    for (int64_t n = 0; n == 0 || n < g->k.count; n += block) {
        const int last = n + block >= g->k.count;
        part.k.count = last ? g->k.count - n : block;
        part.k.tails = last ? g->k.tails : 0;
        part.a_offset = g->a_offset + n * g->k.stride;
        part.b = g->b + n * g->k.length * g->ns * LANES;
        part.cont = n ? g->ns : g->cont;
        for (int64_t i = 0; i < groups_of(panels, size); i++)
            product_panels(&part, turned_group(panels, size, i, g->turned));
    }
}

/* Some rows of a run: its sum starts from zero (`opens`) or continues from the one kept, and is kept again or, when it is
 * complete (`closes`), becomes the total, or is added to it (`adds`) where it is not the first. After the last run's end
 * (`completes`) the total is what was wanted. */
struct run_part {
    int opens, closes, adds, completes;
};

/* Run sums of a weight gradient: total[panel][k][ns][16] = sum over rows of a[row][k] * b[row][ns][16], for a block of
 * at most RUN_ROWS rows that lie in one run.
 * a is [k][RUN_ROWS]; panel p of b starts at b + p*b_panel, its row r at r*b_row. */
struct run_sum {
    int64_t rows, k;
    const real *a, *b;
    int64_t b_panel, b_row;
    int ns;
    real *run, *total;
    struct run_part part;
};

static inline int64_t sum_panel_size(const struct run_sum *g) { return g->k * g->ns * LANES; }

/* The total of a panel. A sum that is complete at once needs memory for one group of panels only, which stays in a cache. */
static inline real *total_at(const struct run_sum *g, int64_t panel)
{
    const int at_once = g->part.opens && g->part.completes && !g->part.adds;
    return g->total + (at_once ? 0 : panel * sum_panel_size(g));
}

static void add_into(real *total, const real *sum, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        v_store(total + i, v_add(v_load(total + i), v_load(sum + i)));
}

static void run_sum_panels(const struct run_sum *g, struct range panels, struct range tiles)
{
    const int64_t first = panels.first, count = panels.last - first;
    const int vectors = (int)count * g->ns * VECTORS, columns = (vectors + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const int64_t row_size = g->ns * LANES, panel_size = sum_panel_size(g);
    real *const run = g->run + first * panel_size, *const target = g->part.closes ? total_at(g, first) : run;
    for (int64_t n = tiles.first; n < tiles.last; n++) {
        const int64_t k0 = n * MAX_ROWS;
        const int mr = (int)min_of(g->k - k0, MAX_ROWS);
        const real *a[MAX_ROWS];
        real *c[MAX_ROWS], *from[MAX_ROWS];
        for (int m = 0; m < mr; m++) {
            a[m] = g->a + (k0 + m) * RUN_ROWS;
            c[m] = target + (k0 + m) * row_size;
            from[m] = run + (k0 + m) * row_size;
        }
        for (int64_t q = 0; q < count; q++) /* its lines arrive while the tile is computed */
            for (int64_t i = 0; i < mr * row_size; i += 64 / (int64_t)sizeof(real))
                __builtin_prefetch(c[0] + q * panel_size + i, 1);
        struct place at = {0};
        for (int v = 0, begin = 0, end; v < columns; v++, begin = end) {
            end = vectors * (v + 1) / columns;
            struct tile t = {.a = a,
                             .c = c,
                             .from = from,
                             .k = krange_dense(g->rows),
                             .b = g->b,
                             .b_step = g->b_row,
                             .add = g->part.closes && g->part.adds};
            for (int j = 0; j < end - begin; j++, next_place(&at, g->ns)) {
                const int64_t lane = at.slot * LANES + at.lane;
                t.b_column[j] = (first + at.panel) * g->b_panel + lane;
                t.c_column[j] = at.panel * panel_size + lane;
                t.lanes[j] = VL;
                t.start[j] = g->part.opens ? zeros : NULL;
            }
            tile_run(&t, mr, end - begin);
        }
    }
}

#endif
