/* Layer normalisation (Ba et al. 2016) of a row's values, over all units of a group's slots:
 *   value' = (value - mean) / sqrt(variance + eps), then gain value' + bias
 * Forward: the products of all panels, the statistics of each row, then panel by panel. Backward, with d = gain x the
 * gradient that came: dvalue = (d - mean(d) - value' mean(d value')) / sqrt(variance + eps).
 *
 * A sum over units runs in 16 lanes over the panels, a panel's slots in order, then over the lanes: the same at every
 * level and for any number of threads. Statistics lie behind a state row's parts, the sums of backward behind a gradient
 * row's: two for each group. */
#ifndef RK_NORM_H
#define RK_NORM_H

/* Where values of a group lie: of panel p and its k-th vector at base + p*panel + k*LANES; with gains, [k][part], as factors. */
struct values {
    const real *base, *gain;
    int64_t panel, part;
    int count;
};

/* The sum of the values less `center`, as they are or squared. */
static real sum_values(const struct values *x, int64_t hidden, real center, int squared)
{
    static const real inside[2 * LANES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    real lanes[LANES] = {0}, sum = 0;
    for (int64_t p = 0; p < panels_of(hidden); p++) {
        const int64_t units = units_in(hidden, p);
        for (int k = 0; k < x->count; k++)
            for (int64_t v = 0; v < LANES; v += VL) {
                const vec value = load_lanes(x->base + p * x->panel + k * LANES + v, clamp_lanes(units - v));
                const vec factor = x->gain ? v_load(x->gain + k * x->part + p * LANES + v) : v_set1(1);
                vec d = v_mul(v_sub(v_mul(value, factor), v_set1(center)), v_load(inside + LANES - units + v));
                v_store(lanes + v, squared ? v_fma(d, d, v_load(lanes + v)) : v_add(d, v_load(lanes + v)));
            }
    }
    for (int k = 0; k < LANES; k++)
        sum += lanes[k];
    return sum;
}

static struct values raw_values(const struct step *s, const struct norm *n, int64_t i)
{
    if (n->part >= 0)
        return (struct values){.base = current_of(s, i, 0, n->part, 0), .panel = LANES, .count = 1};
    return (struct values){.base = slot_of(s, i, 0, n->first, 0), .panel = s->z_panel, .count = n->count};
}

static struct values gained(const struct step *s, const struct norm *n, int64_t i, int first)
{
    return (struct values){.base = slot_of(s, i, 0, first, 0),
                           .panel = s->z_panel,
                           .count = n->count,
                           .gain = s->unit_weights + n->gain * s->part,
                           .part = s->part};
}

/* Of n rows, those that a member takes: its own, or where members have panels of all of them its share. */
#define FOR_SHARED_ROWS(part, n, i)                                           \
    for (int64_t i = (part)->split_units ? (part)->member.index : 0; i < (n); \
         i += (part)->split_units ? (part)->member.count : 1)

static void norm_statistics(const struct job *job, const struct part *part, const struct step *s, int group)
{
    const struct norm *n = &job->cell->norm[group];
    const real count = (real)(n->count * job->hidden);
    FOR_SHARED_ROWS(part, s->rows, i) {
        const struct values x = raw_values(s, n, i);
        real *to = current_of(s, i, 0, job->cell->parts, 2 * group);
        const real mean = sum_values(&x, job->hidden, 0, 0) / count;
        const real variance = sum_values(&x, job->hidden, mean, 1) / count;
        to[0] = mean;
        to[1] = 1 / (real)sqrt((double)(variance + (real)job->net->norm_eps));
    }
}

static void norm_sums(const struct job *job, const struct part *part, const struct step *s, int group)
{
    const struct norm *n = &job->cell->norm[group];
    const real count = (real)(n->count * job->hidden);
    FOR_SHARED_ROWS(part, s->rows, i) {
        const struct values d = gained(s, n, i, n->gate), product = gained(s, n, i, n->product);
        real *to = gradient_of(s, i, 0, job->cell->parts, 2 * group);
        to[0] = sum_values(&d, job->hidden, 0, 0) / count;
        to[1] = sum_values(&product, job->hidden, 0, 0) / count;
    }
}

/* Values normalised, and what the cell's point reads. */
static void norm_forward(const struct job *job, const struct step *s, struct range panels, int group)
{
    const struct norm *n = &job->cell->norm[group];
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        const real *statistics = current_of(s, i, 0, job->cell->parts, 2 * group);
        for (int k = 0; k < n->count; k++) {
            real *value = slot_of(s, i, p, n->first + k, v), *gate = slot_of(s, i, p, n->gate + k, v);
            const vec raw = v_load(n->part >= 0 ? current_of(s, i, p, n->part, v) : value);
            const vec x = v_mul(v_sub(raw, v_set1(statistics[0])), v_set1(statistics[1]));
            const vec a = v_fma(unit_weight_of(s, n->gain + k, p, v), x, unit_weight_of(s, n->bias + k, p, v));
            v_store(value, x);
            v_store(gate, k < n->adds ? v_add(v_load(gate), a) : a);
        }
    }
}

static void norm_products(const struct job *job, const struct step *s, struct range panels, int group)
{
    const struct norm *n = &job->cell->norm[group];
    FOR_EACH_VECTOR(s, panels, p, i, v)
        for (int k = 0; k < n->count; k++)
            v_store(slot_of(s, i, p, n->product + k, v),
                    v_mul(v_load(slot_of(s, i, p, n->gate + k, v)), v_load(slot_of(s, i, p, n->first + k, v))));
}

static void norm_backward(const struct job *job, const struct step *s, struct range panels, int group)
{
    const struct norm *n = &job->cell->norm[group];
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        const real *statistics = current_of(s, i, 0, job->cell->parts, 2 * group);
        const real *means = gradient_of(s, i, 0, job->cell->parts, 2 * group);
        for (int k = 0; k < n->count; k++) {
            real *value = slot_of(s, i, p, n->first + k, v);
            const vec gain = unit_weight_of(s, n->gain + k, p, v), d = v_load(slot_of(s, i, p, n->gate + k, v));
            const vec rest = v_fnma(v_load(value), v_set1(means[1]), v_sub(v_mul(gain, d), v_set1(means[0])));
            v_store(value, v_mul(v_set1(statistics[1]), rest));
        }
    }
}

#endif
