/* Masks from a counter-based generator, Philox4x32-10 (Salmon et al. 2011): a factor depends on seed, layer, direction,
 * kind, step, row and unit alone, not on threads or chunks. Dropout between layers (Srivastava et al. 2014), of inputs,
 * outputs and h (Gal and Ghahramani 2016), of candidates (Semeniuta et al. 2016), of U (Merity et al. 2018); zoneout
 * (Krueger et al. 2017). */
#ifndef RK_MASK_H
#define RK_MASK_H

#define QUADS LANES /* counters that are encrypted side by side, of four units each */
#define MASK_UNITS (4 * QUADS)

struct mask {
    int any;
    uint32_t threshold, key[2], place;
    real below, above; /* the factor where a word is below the threshold or not */
};

static struct mask mask_for(rnnkern_mask kind, double probability, uint64_t seed, int64_t layer, int direction)
{
    const int zoneout = kind == RNNKERN_MASK_ZONEOUT_H || kind == RNNKERN_MASK_ZONEOUT_C;
    struct mask m = {.any = probability > 0,
                     .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
                     .place = (uint32_t)layer | (uint32_t)kind << 16 | (uint32_t)direction << 24,
                     .below = zoneout ? 1 : 0};
    if (probability < 1) {
        m.threshold = (uint32_t)(probability * 4294967296.0);
        m.above = zoneout ? 0 : (real)(1 / (1 - probability));
    } else
        m.above = m.below;
    return m;
}

static void philox(const uint32_t key[2], uint32_t counter[4][QUADS])
{
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int i = 0; i < QUADS; i++) {
            const uint64_t a = (uint64_t)0xD2511F53u * counter[0][i], b = (uint64_t)0xCD9E8D57u * counter[2][i];
            counter[0][i] = (uint32_t)(b >> 32) ^ counter[1][i] ^ k0;
            counter[1][i] = (uint32_t)b;
            counter[2][i] = (uint32_t)(a >> 32) ^ counter[3][i] ^ k1;
            counter[3][i] = (uint32_t)a;
        }
}

/* The factors of units first..first+MASK_UNITS-1, first a multiple of four, at a step of a row. */
static void draw(const struct mask *m, int64_t step, int64_t row, int64_t first, real factor[MASK_UNITS])
{
    uint32_t word[4][QUADS];
    real lanes[4][QUADS];
    for (int i = 0; i < QUADS; i++) {
        word[0][i] = (uint32_t)(first / 4) + (uint32_t)i;
        word[1][i] = (uint32_t)row;
        word[2][i] = (uint32_t)step;
        word[3][i] = m->place;
    }
    philox(m->key, word);
    for (int w = 0; w < 4; w++)
        for (int i = 0; i < QUADS; i++)
            lanes[w][i] = word[w][i] < m->threshold ? m->below : m->above;
    for (int i = 0; i < QUADS; i += VL) { /* four words of a quad side by side */
        vec even[2], odd[2], out[4];
        v_zip(v_load(lanes[0] + i), v_load(lanes[2] + i), &even[0], &even[1]);
        v_zip(v_load(lanes[1] + i), v_load(lanes[3] + i), &odd[0], &odd[1]);
        v_zip(even[0], odd[0], &out[0], &out[1]);
        v_zip(even[1], odd[1], &out[2], &out[3]);
        for (int k = 0; k < 4; k++)
            v_store(factor + 4 * i + k * VL, out[k]);
    }
}

/* (rows, n) masks for those who apply them themselves. */
static void draw_masks(rnnkern_mask kind, double probability, uint64_t seed, int64_t layer, int direction, int64_t step,
                       int64_t first_row, int64_t rows, int64_t n, void *masks)
{
    const struct mask m = mask_for(kind, probability, seed, layer, direction);
    real factor[MASK_UNITS];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t u = 0; u < n; u += MASK_UNITS) {
            draw(&m, step, first_row + i, u, factor);
            memcpy((real *)masks + i * n + u, factor, (size_t)min_of(MASK_UNITS, n - u) * sizeof(real));
        }
}

static inline real masked(real factor, real x) { return factor > 0 ? x * factor : 0; } /* not 0*x: x may be infinite */

/* Of a call, at an absolute step. */
static inline int64_t mask_step(const rnnkern_call *call, int64_t t) { return call->first_step + t; }

#endif
