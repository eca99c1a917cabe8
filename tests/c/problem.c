#define _POSIX_C_SOURCE 200809L

#include "problem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct {
    const char *name;
    rnnkern_cell cell;
    rnnkern_activation candidate;
} cells[] = {
    {"rnn", RNNKERN_RNN, RNNKERN_USUAL},     {"rnn_tanh", RNNKERN_RNN, RNNKERN_TANH},
    {"rnn_relu", RNNKERN_RNN, RNNKERN_RELU}, {"lstm", RNNKERN_LSTM, RNNKERN_USUAL},
    {"gru", RNNKERN_GRU, RNNKERN_USUAL},     {"gru_before", RNNKERN_GRU_BEFORE, RNNKERN_USUAL},
    {"mgu", RNNKERN_MGU, RNNKERN_USUAL},     {"indrnn", RNNKERN_INDRNN, RNNKERN_USUAL},
    {"sru", RNNKERN_SRU, RNNKERN_USUAL},     {"mingru", RNNKERN_MINGRU, RNNKERN_USUAL},
};
static const struct {
    const char *name;
    rnnkern_function function; /* with what a case leaves out */
} activations[] = {
    {"sigmoid", {RNNKERN_SIGMOID, 0, 0}},
    {"tanh", {RNNKERN_TANH, 0, 0}},
    {"relu", {RNNKERN_RELU, 0, 0}},
    {"hard_sigmoid", {RNNKERN_HARD_SIGMOID, 1.0 / 6, 0.5}},
    {"softsign", {RNNKERN_SOFTSIGN, 0, 0}},
    {"identity", {RNNKERN_AFFINE, 1, 0}},
    {"affine", {RNNKERN_AFFINE, 1, 0}},
    {"leaky_relu", {RNNKERN_LEAKY_RELU, 0.01, 0}},
    {"thresholded_relu", {RNNKERN_THRESHOLDED_RELU, 1, 0}},
    {"scaled_tanh", {RNNKERN_SCALED_TANH, 1, 1}},
    {"elu", {RNNKERN_ELU, 1, 0}},
    {"softplus", {RNNKERN_SOFTPLUS, 0, 0}},
};
static const char *const length_names[] = {"none", "full", "ragged", "zeros"};
static const char *const reset_names[] = {"none", "sparse", "dense", "all"};
static const char *const restart_names[] = {"none", "shared", "rows"};
const char *const group_name[GROUPS] = {"y", "hx_n", "dx", "dhx", "drestart", "grads"};

/* Nearly every pair of values of two columns meets in some line; the second block has what needs more rows or units:
 * several chunks and runs, more than 256 rows a step, more panels than threads, and nothing at all. Then options, alone and
 * together, and the cells that are not torch's. */
const char *const case_table[] = {
    /* cell   L D  I  H  B  T bias lengths resets restart hx dropout options */
    "rnn_tanh 2 2 16 9 17 1 bias ragged sparse shared hx 0 -",
    "rnn_tanh 1 2 17 8 16 2 - zeros sparse shared hx 0 -",
    "rnn_tanh 1 1 65 15 17 2 - zeros dense rows - 0 -",
    "rnn_tanh 1 1 33 1 3 3 - zeros none none - 0 -",
    "rnn_tanh 2 1 65 31 13 3 - zeros all none - 0.25 -",
    "rnn_tanh 3 2 3 65 1 3 bias zeros sparse shared hx 0.25 -",
    "rnn_tanh 2 1 9 33 7 5 bias zeros dense shared - 0 -",
    "rnn_tanh 2 2 3 8 2 7 bias none none none - 0.25 -",
    "rnn_tanh 3 1 31 7 17 11 - none none none hx 0.25 -",
    "rnn_tanh 3 1 8 16 5 19 - full none none hx 0 -",
    "rnn_tanh 2 1 1 3 33 19 bias zeros sparse rows - 0 -",
    "rnn_relu 1 1 65 65 33 1 bias none dense none hx 0 -",
    "rnn_relu 3 2 1 15 16 3 bias full sparse rows hx 0.25 -",
    "rnn_relu 1 2 8 33 13 3 - zeros sparse rows hx 0 -",
    "rnn_relu 2 2 1 7 1 5 - full none none - 0 -",
    "rnn_relu 1 2 15 16 2 7 - zeros sparse rows hx 0 -",
    "rnn_relu 2 1 15 16 16 11 bias ragged all shared - 0 -",
    "rnn_relu 3 1 9 9 16 19 bias none sparse rows hx 0.25 -",
    "lstm 3 2 17 1 3 1 bias full dense shared hx 0.25 -",
    "lstm 2 1 7 17 5 2 - full sparse none - 0.25 -",
    "lstm 3 2 9 33 1 2 - none all none hx 0.25 -",
    "lstm 3 1 31 3 5 7 - zeros dense rows - 0.25 -",
    "lstm 2 2 8 7 3 7 - ragged all none hx 0.25 -",
    "lstm 1 2 17 9 2 11 - zeros none none - 0 -",
    "lstm 1 2 7 3 17 19 - full all shared hx 0 -",
    "gru 3 2 15 3 3 1 - none none none hx 0 -",
    "gru 3 1 1 33 2 1 bias ragged dense shared hx 0 -",
    "gru 2 2 8 31 5 2 bias none sparse shared hx 0 -",
    "gru 1 2 9 7 5 3 bias ragged dense shared hx 0 -",
    "gru 3 1 17 9 7 5 - ragged dense rows hx 0.25 -",
    "gru 3 1 33 1 13 5 bias none sparse shared - 0.25 -",
    "gru 1 1 16 17 7 11 - full all none - 0 -",
    "gru 1 1 31 15 1 19 bias ragged all none - 0 -",
    "gru 3 1 3 8 13 19 - none all rows hx 0 -",
    "gru_before 3 1 16 7 13 1 bias zeros sparse rows - 0 -",
    "gru_before 3 1 7 16 7 1 bias none sparse shared - 0.25 -",
    "gru_before 3 2 65 3 13 2 bias ragged none none - 0.25 -",
    "gru_before 3 1 8 9 33 5 - full all rows - 0.25 -",
    "gru_before 1 1 15 8 33 5 - full dense none - 0 -",
    "gru_before 1 1 1 65 2 7 - full all rows - 0 -",
    "gru_before 2 1 17 15 3 7 bias none sparse shared hx 0.25 -",
    "gru_before 1 2 3 31 3 11 - ragged dense rows hx 0 -",
    "gru_before 2 2 31 1 33 11 - ragged sparse shared - 0.25 -",
    "gru_before 2 2 33 17 1 19 bias zeros dense rows hx 0.25 -",

    "rnn_tanh 1 2 3 9 33 40 bias none sparse shared hx 0 -",
    "rnn_tanh 1 1 5 129 2 3 bias none none none hx 0 -",
    "rnn_relu 2 1 2 8 33 40 - ragged sparse rows - 0 -",
    "rnn_relu 1 1 3 5 270 5 bias none sparse shared hx 0 -",
    "lstm 2 2 3 9 33 40 bias zeros sparse shared hx 0.25 -",
    "lstm 1 1 4 17 33 40 bias none none none hx 0 -",
    "lstm 1 2 2 3 300 4 bias zeros dense shared - 0 -",
    "lstm 1 2 9 129 2 3 bias none sparse none hx 0 -",
    "lstm 2 2 5 9 3 0 bias none none none hx 0 -",
    "gru 1 2 3 9 33 40 bias none sparse shared hx 0 -",
    "gru 1 2 3 8 0 4 bias none none none - 0 -",
    "gru 2 1 3 100 3 3 bias zeros sparse rows hx 0.5 -",
    "gru_before 1 1 5 17 33 35 bias none sparse shared hx 0 -",
    "gru_before 1 2 7 100 3 4 bias ragged none none hx 0 -",

    "lstm 2 2 7 19 5 6 bias ragged sparse shared hx 0.25 proj=5",
    "lstm 1 1 5 50 3 7 - none sparse rows hx 0 proj=35",
    "lstm 1 2 3 17 33 40 bias zeros sparse shared hx 0 proj=16",
    "lstm 1 1 6 34 3 5 bias none sparse shared hx 0 proj=18,input",
    "lstm 2 2 6 35 7 5 - ragged sparse rows hx 0 peephole",
    "lstm 1 1 7 17 5 6 bias full sparse shared hx 0 input",
    "lstm 1 2 7 33 6 5 bias ragged none none hx 0 forget",
    "lstm 2 1 3 18 5 7 - zeros dense rows hx 0.25 input,peephole",
    "lstm 1 2 4 34 270 4 bias none sparse shared hx 0 forget,peephole",
    "lstm 1 1 5 15 3 5 bias none none none hx 0 norm",
    "lstm 1 1 3 17 33 40 bias none sparse shared hx 0 norm,peephole",
    "lstm 2 2 3 35 5 4 bias ragged sparse shared hx 0.25 norm,proj=18,peephole",
    "lstm 1 2 6 20 7 5 - zeros dense rows hx 0 norm,input,peephole,zc=0.25",
    "lstm 1 1 3 50 9 6 bias none sparse rows hx 0 norm,forget,zh=0.25,zc=0.5,hidden=0.25,cand=0.25",
    "lstm 1 1 5 17 5 9 bias none none none hx 0 clip=0.5",
    "lstm 1 2 5 17 5 9 bias none sparse shared hx 0 cellclip=0.25",
    "lstm 2 1 3 33 4 8 bias ragged none none hx 0 clip=0.75,cellclip=0.5,peephole,proj=8",
    "lstm 1 1 5 18 7 6 bias none none none hx 0 gate=hard_sigmoid,candidate=softsign,output=scaled_tanh:1.5:0.75",
    "lstm 1 2 4 17 5 6 bias full sparse rows hx 0 gate=hard_sigmoid:0.25:0.375,candidate=relu,output=identity",
    "lstm 2 1 5 16 3 5 - none sparse none - 0.25 zh=0.25,zc=0.25",
    "lstm 1 2 3 20 300 4 bias zeros dense shared hx 0 zh=0.125,proj=17",
    "lstm 2 2 9 33 6 5 bias ragged sparse shared hx 0.5 variational,in=0.25,xout=0.25,hidden=0.25,first=3",
    "lstm 2 2 3 37 5 7 bias zeros sparse rows hx 0.25 proj=21,peephole,input,norm,clip=1.5,cellclip=1,"
    "gate=hard_sigmoid,output=elu,zh=0.25,zc=0.25,hidden=0.25,cand=0.25,in=0.125,xout=0.125,first=5",
    "lstm 2 1 5 17 3 0 bias none none none hx 0 proj=5,norm",
    "gru 1 2 3 17 33 40 bias zeros sparse shared hx 0 norm",
    "gru 2 2 6 33 4 5 - ragged dense rows hx 0.25 norm,zh=0.25,clip=1,hidden=0.25",
    "gru 2 1 4 18 7 6 bias none none none hx 0.25 hidden=0.25,cand=0.25",
    "gru 1 2 5 35 3 6 bias none sparse rows hx 0 gate=hard_sigmoid,candidate=softplus,zh=0.5",
    "gru 1 1 3 16 270 4 bias ragged none none hx 0 candidate=leaky_relu,clip=0.5",
    "gru_before 1 1 5 33 5 6 bias none sparse shared hx 0 hidden=0.5",
    "gru_before 2 2 3 17 4 7 bias ragged dense rows hx 0.25 zh=0.25,cand=0.25,hidden=0.25,clip=1",
    "gru_before 1 2 6 18 3 5 - none none none hx 0 gate=scaled_tanh:0.5:2,candidate=elu:0.5",
    "rnn 1 1 5 17 5 7 bias none none none hx 0 candidate=softsign",
    "rnn 2 2 3 33 4 5 bias ragged dense shared hx 0 candidate=affine:0.5:0.125",
    "rnn 1 2 4 9 7 6 - none none none hx 0 candidate=thresholded_relu:0.25,in=0.25",
    "rnn 1 1 6 18 3 6 bias none dense rows hx 0 candidate=softplus,clip=2",
    "rnn 2 1 5 35 6 5 bias zeros dense shared hx 0.25 candidate=leaky_relu:0.125,norm,variational",
    "rnn 1 2 3 16 300 3 bias ragged sparse shared hx 0 candidate=scaled_tanh:0.75:1.5,norm",
    "rnn_tanh 2 2 7 20 5 6 - full sparse rows hx 0 norm,zh=0.25,hidden=0.25",
    "rnn_relu 1 1 5 17 5 6 bias none none none - 0 clip=1.5,hidden=0.25,in=0.5,xout=0.5",
    "mgu 2 2 6 33 4 6 - ragged dense shared hx 0.25 -",
    "mgu 1 2 3 17 33 35 bias zeros sparse rows hx 0 -",
    "mgu 1 1 4 34 7 5 bias none dense rows hx 0 hidden=0.25,cand=0.25,zh=0.25",
    "mgu 2 1 3 18 3 6 bias none sparse shared - 0.5 gate=hard_sigmoid,candidate=softsign,variational",
    "indrnn 2 2 6 33 4 6 - ragged sparse shared hx 0.25 -",
    "indrnn 1 2 3 17 300 4 bias zeros dense rows hx 0 candidate=tanh",
    "indrnn 2 1 4 35 7 5 bias none sparse shared hx 0 candidate=elu,hidden=0.25,zh=0.25",
    "sru 2 2 6 33 4 6 - ragged sparse shared hx 0.25 -",
    "sru 1 2 3 17 300 4 bias zeros dense rows hx 0 -",
    "sru 2 1 4 35 7 9 bias none sparse rows hx 0 output=tanh,zc=0.25,cand=0.25",
    "sru 1 1 3 18 33 40 bias none sparse shared - 0 gate=hard_sigmoid,output=softsign,xout=0.25",
    "sru 1 2 3 18 0 4 bias none none none hx 0 -",
    "mingru 2 2 6 33 4 6 - ragged sparse shared hx 0.25 -",
    "mingru 1 2 3 17 300 4 bias zeros dense rows hx 0 candidate=softplus",
    "mingru 2 1 4 35 7 9 bias none sparse shared hx 0.25 candidate=tanh,zh=0.25,cand=0.25,in=0.25,first=7",
    NULL,
};

/* ---- the words of a case */

static void bad_case(const char *line, const char *what)
{
    fprintf(stderr, "bad case: %s: %s\n", line, what);
    exit(2);
}

static int index_of(const char *word, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(word, names[i]))
            return i;
    fprintf(stderr, "unknown word %s in the table of cases\n", word);
    exit(2);
}

static void parse_cell(struct spec *s, const char *word)
{
    for (size_t i = 0; i < COUNT(cells); i++)
        if (!strcmp(word, cells[i].name)) {
            s->net.cell = cells[i].cell;
            s->net.candidate.kind = cells[i].candidate;
            return;
        }
    bad_case(s->line, word);
}

/* NAME, NAME:ALPHA or NAME:ALPHA:BETA */
static rnnkern_function parse_function(const char *line, const char *text)
{
    const size_t length = strcspn(text, ":");
    rnnkern_function f = {RNNKERN_USUAL, 0, 0};
    for (size_t i = 0; i < COUNT(activations); i++)
        if (!strncmp(text, activations[i].name, length) && !activations[i].name[length])
            f = activations[i].function;
    if (f.kind == RNNKERN_USUAL || (text[length] && sscanf(text + length, ":%lf:%lf", &f.alpha, &f.beta) < 1))
        bad_case(line, text);
    return f;
}

/* What is behind NAME= in a word; NULL where the word is another. */
static const char *value_of(const char *word, const char *name)
{
    const size_t length = strlen(name);
    return !strncmp(word, name, length) && word[length] == '=' ? word + length + 1 : NULL;
}

static void parse_option(struct spec *s, const char *word)
{
    rnnkern_net *net = &s->net;
    rnnkern_call *call = &s->call;
    const struct {
        const char *name;
        double *to;
    } numbers[] = {{"clip", &net->clip},         {"cellclip", &net->cell_clip},     {"zh", &net->zoneout_h},
                   {"zc", &net->zoneout_c},      {"hidden", &call->hidden_dropout}, {"cand", &call->candidate_dropout},
                   {"in", &call->input_dropout}, {"xout", &call->output_dropout}};
    const struct {
        const char *name;
        int64_t *to;
    } integers[] = {{"proj", &net->proj_size}, {"first", &call->first_step}};
    const struct {
        const char *name;
        rnnkern_function *to;
    } functions[] = {{"gate", &net->gate}, {"candidate", &net->candidate}, {"output", &net->output}};
    int found = 1;
    if (!strcmp(word, "peephole"))
        net->peephole = 1;
    else if (!strcmp(word, "norm"))
        net->layer_norm = 1;
    else if (!strcmp(word, "variational"))
        call->variational = 1;
    else if (!strcmp(word, "input"))
        net->coupled = RNNKERN_COUPLED_INPUT;
    else if (!strcmp(word, "forget"))
        net->coupled = RNNKERN_COUPLED_FORGET;
    else
        found = 0;
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (value_of(word, numbers[i].name))
            found = sscanf(value_of(word, numbers[i].name), "%lf", numbers[i].to);
    for (size_t i = 0; i < COUNT(integers); i++)
        if (value_of(word, integers[i].name))
            found = sscanf(value_of(word, integers[i].name), "%" SCNd64, integers[i].to);
    for (size_t i = 0; i < COUNT(functions); i++)
        if (value_of(word, functions[i].name)) {
            *functions[i].to = parse_function(s->line, value_of(word, functions[i].name));
            found = 1;
        }
    if (found != 1)
        bad_case(s->line, word);
}

struct spec parse_case(const char *line)
{
    char cell[16], bias[8], lengths[8], resets[8], restart[8], hx[8], options[200];
    struct spec s = {.line = line};
    const int n = sscanf(line,
                         "%15s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64
                         " %7s %7s %7s %7s %7s %lf %199s",
                         cell, &s.net.num_layers, &s.net.num_directions, &s.net.input_size, &s.net.hidden_size,
                         &s.call.rows, &s.call.steps, bias, lengths, resets, restart, hx, &s.call.dropout, options);
    if (n != 14)
        bad_case(line, "columns");
    parse_cell(&s, cell);
    s.net.bias = !strcmp(bias, "bias");
    s.net.norm_eps = 1e-5;
    s.lengths = index_of(lengths, length_names, 4);
    s.resets = index_of(resets, reset_names, 4);
    s.call.restart_kind = (rnnkern_restart)index_of(restart, restart_names, 3);
    s.hx = !strcmp(hx, "hx");
    if (strcmp(options, "-"))
        for (char *rest, *word = strtok_r(options, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
            parse_option(&s, word);
    return s;
}

/* ---- sizes */

size_t item_size(const struct problem *p) { return p->net.dtype == RNNKERN_FLOAT32 ? sizeof(float) : sizeof(double); }
int64_t state_count(const struct problem *p) { return p->net.num_layers * p->net.num_directions; }
int64_t h_width(const struct problem *p) { return p->net.proj_size ? p->net.proj_size : p->net.hidden_size; }
int64_t output_width(const struct problem *p) { return p->net.num_directions * h_width(p); }
int64_t weight_count(const struct problem *p) { return state_count(p) * RNNKERN_WEIGHTS; }
int64_t length_of(const struct problem *p, int64_t row)
{
    return p->call.lengths ? p->call.lengths[row] : p->call.steps;
}
int has_h(const struct problem *p) { return p->net.cell != RNNKERN_SRU; }
int has_c(const struct problem *p) { return p->net.cell == RNNKERN_LSTM || p->net.cell == RNNKERN_SRU; }

int64_t restart_rows(const struct problem *p)
{
    return p->call.restart_kind == RNNKERN_RESTART_PER_ROW ? p->call.rows : 1;
}

int has_masks(const struct problem *p)
{
    const rnnkern_call *c = &p->call;
    return c->dropout > 0 || c->input_dropout > 0 || c->output_dropout > 0 || c->hidden_dropout > 0 ||
           c->candidate_dropout > 0 || p->net.zoneout_h > 0 || p->net.zoneout_c > 0;
}

static int64_t gates(const struct problem *p)
{
    static const int all[RNNKERN_CELLS] = {[RNNKERN_RNN] = 1,    [RNNKERN_LSTM] = 4,  [RNNKERN_GRU] = 3,
                                           [RNNKERN_INDRNN] = 1, [RNNKERN_SRU] = 4,   [RNNKERN_GRU_BEFORE] = 3,
                                           [RNNKERN_MGU] = 2,    [RNNKERN_MINGRU] = 2};
    return all[p->net.cell] - (p->net.coupled != RNNKERN_UNCOUPLED);
}

/* Columns of a weight; 1 of a vector. */
static int64_t fan_in(const struct problem *p, int index)
{
    switch (index % RNNKERN_WEIGHTS) {
    case RNNKERN_WEIGHT_IH:
        return index / RNNKERN_WEIGHTS < p->net.num_directions ? p->net.input_size : output_width(p);
    case RNNKERN_WEIGHT_HH:
        return p->net.cell == RNNKERN_INDRNN ? 1 : h_width(p);
    case RNNKERN_WEIGHT_HR:
        return p->net.hidden_size;
    default:
        return 1;
    }
}

static int64_t weight_rows(const struct problem *p, int kind)
{
    const rnnkern_net *net = &p->net;
    const int64_t all = gates(p) * net->hidden_size;
    const int sru = net->cell == RNNKERN_SRU, recurrent = !sru && net->cell != RNNKERN_MINGRU;
    switch (kind) {
    case RNNKERN_WEIGHT_HH:
        return recurrent ? all : 0;
    case RNNKERN_BIAS_IH:
        return net->bias ? all : 0;
    case RNNKERN_BIAS_HH:
        return net->bias && recurrent && net->cell != RNNKERN_INDRNN ? all : 0;
    case RNNKERN_WEIGHT_HR:
        return net->proj_size;
    case RNNKERN_WEIGHT_CH: /* not for the LSTM's g; not for the SRU's n and x */
        return sru ? 2 * net->hidden_size : net->peephole ? all - net->hidden_size : 0;
    case RNNKERN_NORM_IH:
    case RNNKERN_NORM_HH:
        return net->layer_norm ? all : 0;
    case RNNKERN_NORM_C:
    case RNNKERN_NORM_C_BIAS:
        return net->layer_norm && net->cell == RNNKERN_LSTM ? net->hidden_size : 0;
    default:
        return all;
    }
}

int64_t weight_size(const struct problem *p, int index)
{
    return weight_rows(p, index % RNNKERN_WEIGHTS) * fan_in(p, index);
}

/* ---- numbers */

/* Numbers of the generator's arrays; weights and the values that gradients are added to come last. */
enum {
    X,
    HX,
    RESTART = HX + 2,
    DY = RESTART + 2,
    DHX_N,
    LENGTHS = DHX_N + 2,
    RESETS,
    MASKS,
    WEIGHTS = 16,
    TOTALS = 40
};

uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t draw(uint64_t seed, int array, int64_t i)
{
    return mix(((seed * 64 + (uint64_t)array) << 32) + (uint64_t)i);
}

static void put(const struct problem *p, void *block, int64_t i, double value)
{
    if (p->net.dtype == RNNKERN_FLOAT32)
        ((float *)block)[i] = (float)value;
    else
        ((double *)block)[i] = value;
}

/* base + scale x the elements first.. of an array */
static void *numbers_from(const struct problem *p, uint64_t seed, int array, int64_t first, int64_t count, double base,
                          double scale)
{
    void *block = pool_take_unaligned(p->pool, (size_t)count * item_size(p), item_size(p));
    for (int64_t i = 0; i < count; i++) {
        const int64_t n = (int64_t)(draw(seed, array, first + i) >> 43) - (1 << 20);
        put(p, block, i, base + (double)n * 0x1p-20 * scale);
    }
    return block;
}

static void *numbers(const struct problem *p, uint64_t seed, int array, int64_t count)
{
    return numbers_from(p, seed, array, 0, count, 0, 1);
}

static rnnkern_states states(const struct problem *p, uint64_t seed, int array, int64_t rows)
{
    const int64_t count = state_count(p) * rows;
    return (rnnkern_states){.h = has_h(p) ? numbers(p, seed, array, count * h_width(p)) : NULL,
                            .c = has_c(p) ? numbers(p, seed, array + 1, count * p->net.hidden_size) : NULL};
}

static int is_gain(int kind) { return kind == RNNKERN_NORM_IH || kind == RNNKERN_NORM_HH || kind == RNNKERN_NORM_C; }

/* Of matrices, and of what stands for one, about 2/sqrt(fan in): neither dead nor saturated gates. */
static double weight_scale(const struct problem *p, int index)
{
    const int kind = index % RNNKERN_WEIGHTS;
    double scale = 1;
    if (is_gain(kind))
        return 0.25;
    if (kind != RNNKERN_WEIGHT_IH && kind != RNNKERN_WEIGHT_HH && kind != RNNKERN_WEIGHT_HR)
        return 0.5;
    while (scale * scale * (double)fan_in(p, index) > 4)
        scale /= 2;
    return scale;
}

/* A weight, or what its gradient is added to: array WEIGHTS or TOTALS. */
static void *weight(const struct problem *p, uint64_t seed, int array, int index, double base, double scale)
{
    const int n = index / RNNKERN_WEIGHTS, kind = index % RNNKERN_WEIGHTS;
    return numbers_from(p, seed, array + 4 * n + kind % 4, (int64_t)(kind / 4) << 24, weight_size(p, index), base,
                        scale);
}

static void make_weights(struct problem *p, uint64_t seed)
{
    for (int i = 0; i < weight_count(p); i++)
        if (weight_size(p, i)) {
            p->weights[i] = weight(p, seed, WEIGHTS, i, is_gain(i % RNNKERN_WEIGHTS), weight_scale(p, i));
            p->grads[i] = weight(p, seed, TOTALS, i, 0, 1);
        }
}

static void forget_padding(const struct problem *p, void *sequence, int64_t features)
{
    for (int64_t t = 0; t < p->call.steps; t++)
        for (int64_t b = 0; b < p->call.rows; b++)
            if (t >= length_of(p, b))
                fill_block((char *)sequence + (size_t)((t * p->call.rows + b) * features) * item_size(p),
                           (size_t)features * item_size(p), UNWRITTEN, item_size(p));
}

static const int64_t *make_lengths(const struct problem *p, uint64_t seed, int word)
{
    const int64_t T = p->call.steps, B = p->call.rows;
    int64_t *lengths = word ? pool_take(p->pool, (size_t)B * sizeof *lengths) : NULL;
    for (int64_t b = 0; word && b < B; b++) {
        const uint64_t n = draw(seed, LENGTHS, b) >> 32, ragged = 1 + n % (uint64_t)T, zeros = n % (uint64_t)(T + 1);
        lengths[b] = word == 1 ? T : (int64_t)(word == 2 ? ragged : b == B / 2 ? 0 : zeros);
    }
    return lengths;
}

static const uint8_t *make_resets(const struct problem *p, uint64_t seed, int word)
{
    const int64_t all = p->call.steps * p->call.rows;
    uint8_t *resets = word ? pool_take(p->pool, (size_t)all) : NULL;
    const uint64_t every = word == 1 ? (uint64_t)p->call.steps : word == 2 ? 2 : 1;
    for (int64_t i = 0; word && i < all; i++)
        resets[i] = (draw(seed, RESETS, i) >> 32) % every == 0;
    return resets;
}

struct problem make_problem(struct pool *pool, const struct spec *s, rnnkern_dtype dtype, uint64_t seed)
{
    struct problem p = {.pool = pool, .net = s->net, .call = s->call};
    const int64_t T = s->call.steps, B = s->call.rows;
    p.net.dtype = dtype;
    p.call.seed = draw(seed, MASKS, 0);
    p.call.lengths = make_lengths(&p, seed, s->lengths);
    p.call.resets = make_resets(&p, seed, s->resets);
    p.x = numbers(&p, seed, X, T * B * p.net.input_size);
    p.dy = numbers(&p, seed, DY, T * B * output_width(&p));
    forget_padding(&p, p.x, p.net.input_size);
    forget_padding(&p, p.dy, output_width(&p));
    if (s->hx)
        p.hx = states(&p, seed, HX, B);
    if (p.call.restart_kind != RNNKERN_RESTART_ZERO)
        p.restart = states(&p, seed, RESTART, restart_rows(&p));
    p.dhx_n = states(&p, seed, DHX_N, B);
    make_weights(&p, seed);
    return p;
}

/* ---- running */

const char *describe_mode(const struct mode *mode)
{
    static const char *const keep[] = {"none", "gates", "states", "segments"}, *const split[] = {"auto", "rows",
                                                                                                 "units"};
    static _Thread_local char text[120];
    snprintf(text, sizeof text, "level %s, keep %s (%d), threads %d then %d, split %s, %s",
             rnnkern_level_name(mode->level), keep[mode->keep], (int)mode->segment, mode->threads,
             mode->backward_threads, split[mode->split], mode->rows_first ? "rows first" : "time first");
    return text;
}

/* A sequence as the mode wants it. Gaps hold NaN. */
struct laid_out {
    rnnkern_rows rows;
    size_t bytes;
};

#define GAP 3 /* elements behind each row of a sequence that is laid out rows first */

static struct laid_out lay_out(struct pool *pool, const struct problem *p, const struct mode *mode, int64_t features)
{
    const int64_t width = features + (mode->rows_first ? GAP : 0);
    struct laid_out s = {.bytes = (size_t)(p->call.steps * p->call.rows * width) * item_size(p)};
    s.rows = (rnnkern_rows){.step = mode->rows_first ? width : p->call.rows * width,
                            .row = mode->rows_first ? p->call.steps * width : width};
    s.rows.data = pool_take_unaligned(pool, s.bytes, mode->rows_first ? 0 : item_size(p));
    fill_block(s.rows.data, s.bytes, UNWRITTEN, item_size(p));
    return s;
}

static char *row_of(const struct problem *p, rnnkern_rows s, int64_t t, int64_t b)
{
    return (char *)s.data + (t * s.step + b * s.row) * (int64_t)item_size(p);
}

static struct laid_out read_in(struct pool *pool, const struct problem *p, const struct mode *mode, const void *dense,
                               int64_t features)
{
    const struct laid_out s = lay_out(pool, p, mode, features);
    const size_t bytes = (size_t)features * item_size(p);
    for (int64_t t = 0; t < p->call.steps; t++)
        for (int64_t b = 0; b < p->call.rows; b++)
            memcpy(row_of(p, s.rows, t, b), (const char *)dense + (size_t)(t * p->call.rows + b) * bytes, bytes);
    return s;
}

static void *read_out(struct pool *pool, const struct problem *p, const struct mode *mode, rnnkern_rows s,
                      int64_t features)
{
    const size_t bytes = (size_t)features * item_size(p), gap = mode->rows_first ? GAP * item_size(p) : 0;
    char *dense = pool_take(pool, (size_t)(p->call.steps * p->call.rows) * bytes);
    for (int64_t t = 0; t < p->call.steps; t++)
        for (int64_t b = 0; b < p->call.rows; b++) {
            const char *row = row_of(p, s, t, b);
            memcpy(dense + (size_t)(t * p->call.rows + b) * bytes, row, bytes);
            for (size_t i = 0; i < gap; i++)
                CHECK((unsigned char)row[bytes + i] == 0xFF, "a gap between rows was written to: %s",
                      describe_mode(mode));
        }
    return dense;
}

static void *block_of(struct pool *pool, const struct problem *p, size_t bytes, enum fill fill)
{
    void *block = pool_take(pool, bytes);
    fill_block(block, bytes, fill, item_size(p));
    return block;
}

static rnnkern_states new_states(struct pool *pool, const struct problem *p, int64_t rows)
{
    const size_t bytes = (size_t)(state_count(p) * rows) * item_size(p);
    return (rnnkern_states){.h = has_h(p) ? block_of(pool, p, bytes * (size_t)h_width(p), UNWRITTEN) : NULL,
                            .c = has_c(p) ? block_of(pool, p, bytes * (size_t)p->net.hidden_size, UNWRITTEN) : NULL};
}

static uint64_t sum_of_bytes(const void *block, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ ((const unsigned char *)block)[i]) * 0x100000001B3u;
    return sum;
}

struct result run(struct pool *pool, const struct problem *p, const struct mode *mode)
{
    struct pool scratch = {NULL};
    struct result r = {NULL};
    rnnkern_net net = p->net;
    net.level = mode->level;
    rnnkern_call call = p->call;
    call.keep = mode->keep;
    call.segment = mode->segment;
    call.threads = mode->threads;
    call.split = mode->split;
    const int records = mode->keep != RNNKERN_KEEP_NONE;
    const struct laid_out x_in = read_in(&scratch, p, mode, p->x, net.input_size);
    const rnnkern_rows x = x_in.rows;
    const uint64_t x_sum = sum_of_bytes(x.data, x_in.bytes);
    const rnnkern_rows y = lay_out(&scratch, p, mode, output_width(p)).rows;
    rnnkern_sizes_t sizes;
    rnnkern_status status = rnnkern_sizes(&net, &call, &sizes);
    CHECK(status == RNNKERN_OK, "rnnkern_sizes returns %d", status);
    void *packed = block_of(&scratch, p, sizes.packed, GARBAGE);
    void *tape = records ? block_of(&scratch, p, sizes.tape, GARBAGE) : NULL;
    status = rnnkern_pack(&net, (const void *const *)p->weights, packed);
    CHECK(status == RNNKERN_OK, "rnnkern_pack returns %d", status);
    const uint64_t packed_sum = sum_of_bytes(packed, sizes.packed);
    r.hx_n = new_states(pool, p, p->call.rows);
    const size_t one_each = (size_t)(state_count(p) * p->call.steps * p->call.rows) * item_size(p);
    if (mode->rows_first)
        call.trace = block_of(&scratch, p, 6 * one_each * (size_t)net.hidden_size, GARBAGE);
    status = rnnkern_forward(&net, &call, packed, x, p->hx, p->restart, y, r.hx_n, tape,
                             block_of(&scratch, p, sizes.forward_workspace, GARBAGE));
    CHECK(status == RNNKERN_OK, "rnnkern_forward returns %d", status);
    r.y = read_out(pool, p, mode, y, output_width(p));

    if (records) {
        if (mode->rows_first) /* not always: its barriers could hide races */
            call.state_norms = block_of(&scratch, p, 2 * one_each, GARBAGE);
        call.threads = mode->backward_threads;
        rnnkern_sizes(&net, &call, &sizes);
        const rnnkern_rows dy = read_in(&scratch, p, mode, p->dy, output_width(p)).rows;
        const rnnkern_rows dx = lay_out(&scratch, p, mode, net.input_size).rows;
        r.dhx = new_states(pool, p, p->call.rows);
        if (p->call.restart_kind != RNNKERN_RESTART_ZERO)
            r.drestart = new_states(pool, p, restart_rows(p));
        for (int i = 0; i < weight_count(p); i++)
            if (p->grads[i]) {
                const size_t bytes = (size_t)weight_size(p, i) * item_size(p);
                r.grads[i] = memcpy(pool_take_unaligned(pool, bytes, item_size(p)), p->grads[i], bytes);
            }
        status = rnnkern_backward(&net, &call, packed, x, tape, dy, p->dhx_n, dx, r.dhx, r.drestart, r.grads,
                                  block_of(&scratch, p, sizes.backward_workspace, GARBAGE));
        CHECK(status == RNNKERN_OK, "rnnkern_backward returns %d", status);
        r.dx = read_out(pool, p, mode, dx, net.input_size);
    }
    CHECK(sum_of_bytes(x.data, x_in.bytes) == x_sum, "x was written to: %s", describe_mode(mode));
    CHECK(sum_of_bytes(packed, sizes.packed) == packed_sum, "packed was written to: %s", describe_mode(mode));
    CHECK(pool_intact(&scratch) && pool_intact(pool) && pool_intact(p->pool), "a guard zone was written to: %s",
          describe_mode(mode));
    pool_release(&scratch);
    return r;
}

/* ---- digests */

struct digest {
    uint64_t sum, count;
};

static void add_elements(const struct problem *p, struct digest *d, const void *block, int64_t count)
{
    for (int64_t i = 0; block && i < count; i++, d->count++) {
        uint64_t bits;
        if (p->net.dtype == RNNKERN_FLOAT32) {
            uint32_t single;
            memcpy(&single, (const float *)block + i, sizeof single);
            bits = single;
            CHECK((single & 0x7FFFFFFFu) <= 0x7F800000u, "a result is NaN");
        } else {
            memcpy(&bits, (const double *)block + i, sizeof bits);
            CHECK((bits & INT64_MAX) <= 0x7FF0000000000000u, "a result is NaN");
        }
        d->sum += mix(bits + d->count * 0xD1342543DE82EF95u);
    }
}

static void add_states(const struct problem *p, struct digest *d, rnnkern_states s, int64_t rows)
{
    const int64_t count = state_count(p) * rows;
    add_elements(p, d, s.h, count * h_width(p));
    add_elements(p, d, s.c, count * p->net.hidden_size);
}

uint64_t digest_of(const struct problem *p, const struct result *r, enum group group, int *given)
{
    struct digest d = {0, 0};
    const int64_t rows = p->call.steps * p->call.rows;
    *given = 1;
    switch (group) {
    case Y:
        add_elements(p, &d, r->y, rows * output_width(p));
        break;
    case HX_N:
        add_states(p, &d, r->hx_n, p->call.rows);
        break;
    case DX:
        *given = r->dx != NULL;
        add_elements(p, &d, r->dx, rows * p->net.input_size);
        break;
    case DHX:
        *given = r->dhx.h || r->dhx.c;
        add_states(p, &d, r->dhx, p->call.rows);
        break;
    case DRESTART:
        *given = r->drestart.h || r->drestart.c;
        add_states(p, &d, r->drestart, restart_rows(p));
        break;
    case GRADS:
        *given = r->grads[0] != NULL;
        for (int i = 0; i < weight_count(p); i++)
            add_elements(p, &d, r->grads[i], weight_size(p, i));
        break;
    case GROUPS:
        break;
    }
    return d.sum;
}
