/* Dropout masks from a counter-based generator, Philox4x32-10 (Salmon et al. 2011): the mask of an element depends on
 * seed, layer, step, row and unit alone, not on threads or chunks. */
#ifndef RK_PHILOX_H
#define RK_PHILOX_H

struct dropout {
    uint64_t threshold; /* kept iff the word is not below; 2^32 drops all */
    uint32_t key[2];
    real scale;
};

static struct dropout dropout_for(double probability, uint64_t seed)
{
    return (struct dropout){.threshold = (uint64_t)(probability * 4294967296.0),
                            .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
                            .scale = probability < 1 ? (real)(1 / (1 - probability)) : 0};
}

static void philox(const uint32_t key[2], uint32_t counter[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t a = (uint64_t)0xD2511F53u * counter[0], b = (uint64_t)0xCD9E8D57u * counter[2];
        counter[0] = (uint32_t)(b >> 32) ^ counter[1] ^ k0;
        counter[1] = (uint32_t)b;
        counter[2] = (uint32_t)(a >> 32) ^ counter[3] ^ k1;
        counter[3] = (uint32_t)a;
    }
}

/* The factors, 0 or scale, of units first..first+n-1 of one row of a layer's output. */
static void dropout_mask_row(const struct dropout *d, int64_t layer, int64_t step, int64_t row, int64_t first,
                             int64_t n, real *mask)
{
    uint32_t word[4];
    for (int64_t u = first; u < first + n; u++) {
        if (u == first || u % 4 == 0) {
            word[0] = (uint32_t)(u / 4);
            word[1] = (uint32_t)row;
            word[2] = (uint32_t)step;
            word[3] = (uint32_t)layer; /* the upper half is the kind of mask: 0, between layers */
            philox(d->key, word);
        }
        mask[u - first] = word[u % 4] >= d->threshold ? d->scale : 0;
    }
}

static void dropout_mask(double probability, uint64_t seed, int64_t layer, int64_t step, int64_t row, int64_t n,
                         void *mask)
{
    const struct dropout d = dropout_for(probability, seed);
    dropout_mask_row(&d, layer, step, row, 0, n, mask);
}

#endif
