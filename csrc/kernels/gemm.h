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

#define LANES 16      /* of a panel, at every level and dtype */
#define MAX_COLUMNS 4 /* vectors of a register tile */
#define RUN_ROWS 256  /* rows that are summed from zero before they join the weight gradient's total */

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

/* C tile of mr x nv vectors. a: row pointers, a_step between consecutive k. b, c: the tile's column j lies at
 * offset b_column[j], c_column[j]; b advances b_step per k. The first `cont` columns continue from C, the others start
 * from bias[j*LANES]. Of column j, lanes[j] >= 0 lanes exist. mr and nv are constants at each call. */
struct tile {
    const real *const *a;
    int64_t a_step;
    struct krange k;
    const real *b;
    int64_t b_step, b_column[MAX_COLUMNS];
    real *const *c;
    int64_t a_offset, c_offset, c_column[MAX_COLUMNS];
    const real *bias;
    int cont;
    int64_t lanes[MAX_COLUMNS]; /* <= VL */
};

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8") /* or the accumulators would live in memory */

ALWAYS_INLINE void tile_body(const struct tile *t, const int mr, const int nv)
{
    vec acc[MAX_ROWS][MAX_COLUMNS];
    const real *a[MAX_ROWS], *b[MAX_COLUMNS];
    real *c[MAX_ROWS];
    UNROLL
    for (int j = 0; j < nv; j++)
        b[j] = t->b + t->b_column[j];
    UNROLL
    for (int m = 0; m < mr; m++) {
        a[m] = t->a[m] + t->a_offset;
        c[m] = t->c[m] + t->c_offset;
        UNROLL
        for (int j = 0; j < nv; j++)
            acc[m][j] = j >= t->cont        ? v_load(t->bias + j * LANES)
                        : t->lanes[j] == VL ? v_load(c[m] + t->c_column[j])
                                            : v_load_n(c[m] + t->c_column[j], t->lanes[j]);
    }
    const int64_t a_step = t->a_step, b_step = t->b_step, pieces = t->k.count + t->k.tails;
    int64_t kb = 0;
    for (int64_t piece = 0; piece < pieces; piece++) {
        int full = piece < t->k.count;
        int64_t ka = full ? piece * t->k.stride : t->k.count * t->k.stride + (piece - t->k.count) * LANES;
        const int64_t end = ka + (full ? t->k.length : t->k.tail_length) * a_step;
        for (; ka < end; ka += a_step, kb += b_step) {
            vec bj[MAX_COLUMNS];
            UNROLL
            for (int j = 0; j < nv; j++)
                bj[j] = v_load(b[j] + kb);
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
    for (int m = 0; m < mr; m++) {
        UNROLL
        for (int j = 0; j < nv; j++)
            if (t->lanes[j] == VL)
                v_store(c[m] + t->c_column[j], acc[m][j]);
            else
                v_store_n(c[m] + t->c_column[j], t->lanes[j], acc[m][j]);
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
};

static inline int64_t clamp_lanes(int64_t n) { return n < 0 ? 0 : n > VL ? VL : n; }
static inline int64_t panels_of(int64_t units) { return (units + LANES - 1) / LANES; }

/* Narrow panels (one or two vectors) share a register tile. */
static inline int panels_per_tile(int ns) { return ns <= MAX_COLUMNS / 2 ? MAX_COLUMNS / ns : 1; }

/* Panels first..first+count-1, which fit in one tile, for all rows. */
static void product_panels(const struct product *g, int64_t first, int count)
{
    const int nv = count * g->ns;
    const int64_t tiles = (g->rows + MAX_ROWS - 1) / MAX_ROWS;
    real zero_or_bias[MAX_COLUMNS * LANES] = {0};
    for (int j = 0; g->bias && j < nv; j++)
        memcpy(zero_or_bias + j * LANES, g->bias + (first + j / g->ns) * g->bias_panel + j % g->ns * LANES,
               LANES * sizeof(real));
    for (int64_t v = 0; v < LANES; v += VL) {
        struct tile t = {.a_step = 1,
                         .k = g->k,
                         .b = g->b + first * g->k_total * g->ns * LANES + v,
                         .b_step = g->ns * LANES,
                         .a_offset = g->a_offset,
                         .c_offset = g->c_offset,
                         .bias = zero_or_bias + v,
                         .cont = g->cont == 0      ? 0
                                 : g->cont < g->ns ? g->cont
                                                   : nv};
        for (int j = 0; j < nv; j++) {
            int64_t panel = first + j / g->ns, slot = j % g->ns;
            t.b_column[j] = (panel - first) * g->k_total * g->ns * LANES + slot * LANES;
            t.c_column[j] = panel * g->c_panel + slot * LANES + v;
            t.lanes[j] = clamp_lanes(g->width - panel * LANES - v);
        }
        int64_t i = 0;
        for (int64_t n = 0; n < tiles; n++) { /* rows spread evenly: 16 rows are 6, 5 and 5 */
            int64_t end = g->rows * (n + 1) / tiles;
            t.a = g->a + i;
            t.c = g->c + i;
            tile_run(&t, (int)(end - i), nv);
            i = end;
        }
    }
}

static void product_run(const struct product *g, int64_t begin, int64_t end)
{
    const int step = panels_per_tile(g->ns);
    for (int64_t p = begin; p < end; p += step)
        product_panels(g, p, (int)(end - p < step ? end - p : step));
}

/* Run sums of a weight gradient: total[panel][k][ns][16] += sum over rows of a[row][k] * b[row][ns][16], for a block of
 * at most RUN_ROWS rows that lie in one run. A run starts from zero (`opens`) or continues from `run`, is kept in `run`
 * or, when it is complete (`closes`), added to `total`.
 * a is packed [k / MAX_ROWS][RUN_ROWS][MAX_ROWS]; panel p of b starts at b + p*b_panel, its row r at r*b_row. */
struct run_sum {
    int64_t rows, k;
    const real *a, *b;
    int64_t b_panel, b_row;
    int ns;
    real *run, *total;
    int opens, closes;
};

static void add_into(real *total, const real *sum, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        v_store(total + i, v_add(v_load(total + i), v_load(sum + i)));
}

static void run_sum_panels(const struct run_sum *g, int64_t first, int count, int64_t tile_begin, int64_t tile_end)
{
    const int nv = count * g->ns;
    const int64_t row_size = g->ns * LANES, panel_size = g->k * row_size;
    for (int64_t n = tile_begin; n < tile_end; n++) {
        const int64_t k0 = n * MAX_ROWS;
        const int mr = (int)(g->k - k0 < MAX_ROWS ? g->k - k0 : MAX_ROWS);
        real local[MAX_COLUMNS * MAX_ROWS * LANES];
        const int whole = g->opens && g->closes;
        real *target = whole ? local : g->run + first * panel_size + k0 * row_size;
        const int64_t target_panel = whole ? MAX_ROWS * row_size : panel_size;
        real zero[MAX_COLUMNS * LANES] = {0};
        const real *a[MAX_ROWS];
        real *c[MAX_ROWS];
        for (int m = 0; m < mr; m++) {
            a[m] = g->a + k0 * RUN_ROWS + m;
            c[m] = target + m * row_size;
        }
        for (int q = 0; q < count; q++) /* its lines arrive while the tile is computed */
            for (int64_t i = 0; i < mr * row_size; i += 64 / (int64_t)sizeof(real))
                __builtin_prefetch(g->total + (first + q) * panel_size + k0 * row_size + i, 1);
        struct tile t = {.a = a,
                         .a_step = MAX_ROWS,
                         .k = krange_dense(g->rows),
                         .b_step = g->b_row,
                         .c = c,
                         .bias = zero,
                         .cont = g->opens ? 0 : nv};
        for (int64_t v = 0; v < LANES; v += VL) {
            t.b = g->b + first * g->b_panel + v;
            for (int j = 0; j < nv; j++) {
                t.b_column[j] = j / g->ns * g->b_panel + j % g->ns * LANES;
                t.c_column[j] = j / g->ns * target_panel + j % g->ns * LANES + v;
                t.lanes[j] = VL;
            }
            tile_run(&t, mr, nv);
        }
        for (int q = 0; g->closes && q < count; q++)
            add_into(g->total + (first + q) * panel_size + k0 * row_size, target + q * target_panel, mr * row_size);
    }
}

static void run_sum(const struct run_sum *g, int64_t panels, int64_t tile_begin, int64_t tile_end)
{
    const int step = panels_per_tile(g->ns);
    for (int64_t p = 0; p < panels; p += step)
        run_sum_panels(g, p, (int)(panels - p < step ? panels - p : step), tile_begin, tile_end);
}

#endif
