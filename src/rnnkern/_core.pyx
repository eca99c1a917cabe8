# cython: language_level=3, freethreading_compatible=True, embedsignature=True
"""The functions of csrc/rnnkern.h, one to one. Arguments come checked from functional.py; what is checked again here
is only what keeps a wrong array from being read as memory."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcpy

cimport numpy as cnp

import numpy as np

cnp.import_array()


cdef extern from "rnnkern.h" nogil:
    const int RNNKERN_ALIGNMENT
    ctypedef enum rnnkern_status:
        RNNKERN_OK
        RNNKERN_BAD_ARGUMENT
        RNNKERN_OVERFLOW
        RNNKERN_NO_LEVEL
    ctypedef enum rnnkern_cell:
        RNNKERN_LSTM
        RNNKERN_SRU
    ctypedef enum rnnkern_weight:
        pass
    ctypedef enum rnnkern_dtype:
        pass
    ctypedef enum rnnkern_activation:
        pass
    ctypedef struct rnnkern_function:
        rnnkern_activation kind
        double alpha
        double beta
    ctypedef enum rnnkern_coupling:
        pass
    ctypedef enum rnnkern_mask:
        pass
    ctypedef enum rnnkern_keep:
        RNNKERN_KEEP_NONE
    ctypedef enum rnnkern_restart:
        pass
    ctypedef enum rnnkern_split:
        pass
    ctypedef struct rnnkern_net:
        rnnkern_cell cell
        rnnkern_dtype dtype
        int level
        int bias
        int64_t input_size
        int64_t hidden_size
        int64_t proj_size
        int64_t num_layers
        int64_t num_directions
        rnnkern_function gate
        rnnkern_function candidate
        rnnkern_function output
        rnnkern_coupling coupled
        int peephole
        int layer_norm
        double norm_eps
        double clip
        double cell_clip
        double zoneout_h
        double zoneout_c
    ctypedef struct rnnkern_call:
        int64_t steps
        int64_t rows
        const int64_t *lengths
        const uint8_t *resets
        rnnkern_restart restart_kind
        rnnkern_keep keep
        int64_t segment
        double dropout
        int variational
        double input_dropout
        double output_dropout
        double hidden_dropout
        double candidate_dropout
        uint64_t seed
        int64_t first_step
        int threads
        rnnkern_split split
        void *trace
        int row_grads
        double clip
        void *state_norms
    ctypedef struct rnnkern_sizes_t:
        size_t packed
        size_t tape
        size_t forward_workspace
        size_t backward_workspace
    ctypedef enum rnnkern_reason:
        pass
    ctypedef struct rnnkern_plan_t:
        int own_functions
        rnnkern_reason reason
        int threads
        int tile_rows
        int tile_columns
        int vector_lanes
        int64_t chunk_rows
    ctypedef struct rnnkern_rows:
        void *data
        int64_t step
        int64_t row
        int64_t layer
    ctypedef struct rnnkern_states:
        void *h
        void *c
    const char *rnnkern_level_name(int)
    int rnnkern_level_supported(int)
    int64_t rnnkern_weight_size(const rnnkern_net *, int64_t, rnnkern_weight)
    int rnnkern_team_size()
    rnnkern_status rnnkern_sizes(const rnnkern_net *, const rnnkern_call *, rnnkern_sizes_t *)
    rnnkern_status rnnkern_plan(const rnnkern_net *, const rnnkern_call *, rnnkern_plan_t *)
    rnnkern_status rnnkern_pack(const rnnkern_net *, const void *const *, void *)
    rnnkern_status rnnkern_forward(const rnnkern_net *, const rnnkern_call *, const void *, rnnkern_rows, rnnkern_states,
                                   rnnkern_states, rnnkern_rows, rnnkern_states, void *, void *)
    rnnkern_status rnnkern_backward(const rnnkern_net *, const rnnkern_call *, const void *, rnnkern_rows, void *,
                                    rnnkern_rows, rnnkern_states, rnnkern_rows, rnnkern_states, rnnkern_states,
                                    void *const *, void *)
    rnnkern_status rnnkern_activate(rnnkern_dtype, int, rnnkern_function, int64_t, const void *, void *)
    rnnkern_status rnnkern_draw_masks(rnnkern_dtype, int, rnnkern_mask, double, uint64_t, int64_t, int, int64_t,
                                      int64_t, int64_t, int64_t, void *)


cdef extern from "<stdatomic.h>" nogil:
    ctypedef struct atomic_flag:
        pass
    bint atomic_flag_test_and_set(atomic_flag *)
    void atomic_flag_clear(atomic_flag *)


# In the order of the enums of rnnkern.h.
CELLS = ("rnn", "lstm", "gru", "gru_before", "mgu", "indrnn", "sru", "mingru")
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr", "weight_ch", "norm_ih", "norm_hh", "norm_c",
           "norm_c_bias")
ACTIVATIONS = ("usual", "sigmoid", "tanh", "relu", "hard_sigmoid", "softsign", "affine", "leaky_relu",
               "thresholded_relu", "scaled_tanh", "elu", "softplus")
COUPLINGS = (None, "input", "forget")
MASKS = ("layers", "input", "output", "hidden", "candidate", "zoneout_h", "zoneout_c", "weights")
KEEP_NONE, KEEP_GATES, KEEP_STATES, KEEP_SEGMENTS = range(4)
RESTART_ZERO, RESTART_SHARED, RESTART_PER_ROW = range(3)
REASONS = ("one allowed", "small work", "small matrix", "one share", "rows", "units")
SPLITS = ("auto", "rows", "units")
TRACED = {
    "rnn": ("a", "h"), "lstm": ("i", "f", "g", "o", "h", "c"), "gru": ("n", "r", "z", "u", "h"),
    "gru_before": ("n", "r", "z", "h"), "mgu": ("n", "f", "h"), "indrnn": ("a", "h"),
    "sru": ("n", "f", "r", "x", "h", "c"), "mingru": ("z", "n", "h"),
}
TRACED_COUPLED = ("e", "g", "o", "h", "c")
ALIGNMENT = RNNKERN_ALIGNMENT


cdef int check(rnnkern_status status) except -1:
    if status == RNNKERN_OK:
        return 0
    if status == RNNKERN_OVERFLOW:
        raise ValueError("the sizes are too large: their product does not fit in memory addresses")
    if status == RNNKERN_NO_LEVEL:
        raise RuntimeError("this SIMD level is not available on this machine")
    raise ValueError("the kernels refused the arguments")


def level_names():
    """Names of the compiled SIMD levels, best first."""
    names = []
    while rnnkern_level_name(len(names)) != NULL:
        names.append(rnnkern_level_name(len(names)).decode())
    return tuple(names)


def level_supported(int level):
    """Whether this machine has the level (an index into level_names())."""
    return bool(rnnkern_level_supported(level))


def team_size():
    """Threads of the kernels' team that exist now, the caller among them."""
    return rnnkern_team_size()


cdef rnnkern_function function_of(function) except *:
    """An activation: its name, or (name, alpha, beta); None is what the cell has by default."""
    cdef rnnkern_function f
    name, f.alpha, f.beta = function if isinstance(function, tuple) else (function or "usual", 0, 0)
    f.kind = <rnnkern_activation><int>ACTIVATIONS.index(name)
    return f


cdef tuple as_function(rnnkern_function function):
    return ACTIVATIONS[<int>function.kind], function.alpha, function.beta


cdef class Net:
    """What is computed: rnnkern_net."""

    cdef rnnkern_net c
    cdef readonly object dtype

    def __cinit__(self, str cell, dtype, int level, bint bias, int64_t input_size, int64_t hidden_size,
                  int64_t num_layers, int64_t num_directions, *, int64_t proj_size=0, gate=None, candidate=None,
                  output=None, coupled=None, bint peephole=False, bint layer_norm=False, double norm_eps=1e-5,
                  double clip=0.0, double cell_clip=0.0, double zoneout_h=0.0, double zoneout_c=0.0):
        self.dtype = np.dtype(dtype)
        self.c.cell = <rnnkern_cell><int>CELLS.index(cell)
        self.c.dtype = <rnnkern_dtype><int>DTYPES.index(self.dtype)
        self.c.level = level
        self.c.bias = bias
        self.c.input_size = input_size
        self.c.hidden_size = hidden_size
        self.c.proj_size = proj_size
        self.c.num_layers = num_layers
        self.c.num_directions = num_directions
        self.c.gate = function_of(gate)
        self.c.candidate = function_of(candidate)
        self.c.output = function_of(output)
        self.c.coupled = <rnnkern_coupling><int>COUPLINGS.index(coupled)
        self.c.peephole = peephole
        self.c.layer_norm = layer_norm
        self.c.norm_eps = norm_eps
        self.c.clip = clip
        self.c.cell_clip = cell_clip
        self.c.zoneout_h = zoneout_h
        self.c.zoneout_c = zoneout_c

    @property
    def cell(self):
        return CELLS[<int>self.c.cell]

    @property
    def level(self):
        return self.c.level

    @property
    def bias(self):
        return bool(self.c.bias)

    @property
    def input_size(self):
        return self.c.input_size

    @property
    def hidden_size(self):
        return self.c.hidden_size

    @property
    def proj_size(self):
        return self.c.proj_size

    @property
    def num_layers(self):
        return self.c.num_layers

    @property
    def num_directions(self):
        return self.c.num_directions

    @property
    def gate(self):
        return as_function(self.c.gate)

    @property
    def candidate(self):
        return as_function(self.c.candidate)

    @property
    def output(self):
        return as_function(self.c.output)

    @property
    def coupled(self):
        return COUPLINGS[<int>self.c.coupled]

    @property
    def peephole(self):
        return bool(self.c.peephole)

    @property
    def layer_norm(self):
        return bool(self.c.layer_norm)

    @property
    def norm_eps(self):
        return self.c.norm_eps

    @property
    def clip(self):
        return self.c.clip

    @property
    def cell_clip(self):
        return self.c.cell_clip

    @property
    def zoneout_h(self):
        return self.c.zoneout_h

    @property
    def zoneout_c(self):
        return self.c.zoneout_c

    @property
    def traced(self):
        """Names of the vectors of a trace."""
        return TRACED_COUPLED if <int>self.c.coupled else TRACED[self.cell]


cdef inline int64_t width_of(Net net) noexcept:
    """P, the features of h."""
    return net.c.proj_size if net.c.proj_size else net.c.hidden_size


cdef class Call:
    """On what: rnnkern_call. Keeps the arrays of lengths (int64) and resets (T, B, uint8) alive."""

    cdef rnnkern_call c
    cdef readonly object lengths, resets
    cdef object state_norms, trace

    def __cinit__(self, int64_t steps, int64_t rows, lengths, resets, int restart_kind, int keep, int64_t segment,
                  double dropout, uint64_t seed, int threads, str split="auto", *, bint variational=False,
                  double input_dropout=0.0, double output_dropout=0.0, double hidden_dropout=0.0,
                  double candidate_dropout=0.0, int64_t first_step=0):
        self.c.restart_kind = <rnnkern_restart>restart_kind
        self.c.keep = <rnnkern_keep>keep
        self.c.segment = segment
        self.c.dropout = dropout
        self.c.variational = variational
        self.c.input_dropout = input_dropout
        self.c.output_dropout = output_dropout
        self.c.hidden_dropout = hidden_dropout
        self.c.candidate_dropout = candidate_dropout
        self.c.seed = seed
        self.c.first_step = first_step
        self.c.threads = threads
        self.c.split = <rnnkern_split><int>SPLITS.index(split)
        self.cover(steps, rows, lengths, resets)

    cdef int cover(self, int64_t steps, int64_t rows, lengths, resets) except -1:
        self.c.steps = steps
        self.c.rows = rows
        self.lengths = lengths
        self.resets = resets
        self.c.lengths = <const int64_t *>plain(lengths, cnp.NPY_INT64, rows)
        self.c.resets = <const uint8_t *>plain(resets, cnp.NPY_UINT8, steps * rows)
        return 0

    cdef Call twin(self):
        """The same call, without a trace."""
        cdef Call call = Call(0, 0, None, None, 0, 0, 1, 0.0, 0, 1)
        call.c = self.c
        call.c.trace = NULL
        call.lengths, call.resets = self.lengths, self.resets
        return call

    @property
    def steps(self):
        return self.c.steps

    @property
    def rows(self):
        return self.c.rows

    @property
    def keep(self):
        return <int>self.c.keep

    @property
    def traced(self):
        return self.c.trace != NULL

    @property
    def segment(self):
        return self.c.segment

    @property
    def restart_kind(self):
        return <int>self.c.restart_kind

    def trace_into(self, Net net, trace):
        """Shows gates and states there: contiguous (L*D, T, B, len(net.traced), H)."""
        cdef int64_t vectors = len(net.traced) * net.c.hidden_size
        self.trace = trace
        self.c.trace = plain(trace, type_of(net), net.c.num_layers * net.c.num_directions * self.c.steps
                             * self.c.rows * vectors)

    def part(self, int64_t start, int64_t stop):
        """The same call on some of the steps; itself for all of them. Of inference."""
        if start == 0 and stop == self.c.steps:
            return self
        cdef Call call = self.twin()
        lengths = None if self.lengths is None else np.clip(self.lengths - start, 0, stop - start)
        resets = None if self.resets is None else self.resets[start:stop]
        call.cover(stop - start, self.c.rows, lengths, resets)
        return call

    def for_backward(self, Net net, int threads, str split="auto", double clip=0.0, state_norms=None,
                     bint row_grads=False):
        """The same call on another number of threads, with what backward may do besides.

        state_norms: where norms go, contiguous (L*D, S, T, B). row_grads: grads are (B, ...) each.
        """
        cdef Call call = self.twin()
        cdef int64_t sweeps = net.c.num_layers * net.c.num_directions
        call.c.threads = threads
        call.c.split = <rnnkern_split><int>SPLITS.index(split)
        call.c.clip = clip
        call.c.row_grads = row_grads
        call.state_norms = state_norms
        call.c.state_norms = plain(state_norms, type_of(net),
                                   sweeps * (2 if net.c.cell == RNNKERN_LSTM else 1) * self.c.steps * self.c.rows)
        return call


cdef void *plain(array, int type_number, int64_t size) except? NULL:
    """The data of a C-contiguous array with a known number of elements; None gives NULL."""
    if array is None:
        return NULL
    cdef cnp.ndarray a = array
    if cnp.PyArray_TYPE(a) != type_number or cnp.PyArray_SIZE(a) != size or not cnp.PyArray_ISCARRAY_RO(a):
        raise ValueError(f"expected a contiguous array of {size} elements, got {a.dtype} {(<object>a).shape}")
    return cnp.PyArray_DATA(a)


cdef int type_of(Net net):
    return cnp.NPY_FLOAT32 if net.c.dtype == 0 else cnp.NPY_FLOAT64


cdef rnnkern_rows rows_of(array, Net net, Call call, int64_t features) except *:
    """A (T, B, F) view whose last axis is dense, or (L, T, B, F) of all layers; None gives no data."""
    cdef rnnkern_rows rows
    rows.data = NULL
    rows.step = rows.row = rows.layer = 0
    if array is None:
        return rows
    cdef cnp.ndarray a = array
    cdef int axes = cnp.PyArray_NDIM(a), first = axes - 3
    cdef int64_t item = cnp.PyArray_ITEMSIZE(a)
    cdef bint fits = cnp.PyArray_TYPE(a) == type_of(net) and cnp.PyArray_ISBEHAVED_RO(a) and axes in (3, 4)
    fits = fits and (first == 0 or cnp.PyArray_DIM(a, 0) == net.c.num_layers) and \
        cnp.PyArray_DIM(a, first) == call.c.steps and cnp.PyArray_DIM(a, first + 1) == call.c.rows and \
        cnp.PyArray_DIM(a, first + 2) == features
    if fits and cnp.PyArray_SIZE(a):  # strides of an empty array mean nothing
        fits = features == 1 or cnp.PyArray_STRIDE(a, axes - 1) == item
        for axis in range(axes - 1):
            fits = fits and cnp.PyArray_STRIDE(a, axis) % item == 0
    if not fits:
        raise ValueError(f"expected a (T, B, {features}) view with a dense last axis, got {(<object>a).shape}")
    rows.data = cnp.PyArray_DATA(a)
    rows.step = cnp.PyArray_STRIDE(a, first) // item
    rows.row = cnp.PyArray_STRIDE(a, first + 1) // item
    if first:
        rows.layer = cnp.PyArray_STRIDE(a, 0) // item
    return rows


cdef rnnkern_states states_of(states, Net net, int64_t rows) except *:
    """States (L*D, rows, P or H) of the cell, or None: (h,), of the LSTM (h, c), of the SRU (c,)."""
    cdef rnnkern_states s
    s.h = s.c = NULL
    cdef int64_t count = net.c.num_layers * net.c.num_directions * rows
    if states is None:
        return s
    if net.c.cell != RNNKERN_SRU:
        s.h = plain(states[0], type_of(net), count * width_of(net))
    if net.c.cell == RNNKERN_SRU or net.c.cell == RNNKERN_LSTM:
        s.c = plain(states[-1], type_of(net), count * net.c.hidden_size)
    return s


cdef int64_t restart_rows(Call call):
    return call.c.rows if call.c.restart_kind == RESTART_PER_ROW else 1


def aligned(size_t size):
    """New memory, uint8, of so many bytes that start where the kernels may work."""
    cdef cnp.ndarray memory = np.empty(size + RNNKERN_ALIGNMENT, np.uint8)
    cdef size_t start = -<uintptr_t>cnp.PyArray_DATA(memory) % RNNKERN_ALIGNMENT
    return memory[start:start + size]


def lent(block, cnp.npy_intp size, owner):
    """The first bytes of a block, which keep the owner alive rather than the block."""
    if size > cnp.PyArray_SIZE(<cnp.ndarray?>block):
        raise ValueError(f"expected a block of {size} bytes")
    cdef cnp.ndarray array = cnp.PyArray_SimpleNewFromData(1, &size, cnp.NPY_UINT8, cnp.PyArray_DATA(<cnp.ndarray>block))
    cnp.set_array_base(array, owner)
    return array


cdef void *block(array, size_t bytes) except? NULL:
    """A uint8 array of at least that many bytes, aligned."""
    if array is None:
        return NULL
    cdef cnp.ndarray a = array
    cdef void *data = cnp.PyArray_DATA(a)
    if cnp.PyArray_TYPE(a) != cnp.NPY_UINT8 or not cnp.PyArray_ISCARRAY_RO(a) or <size_t>cnp.PyArray_SIZE(a) < bytes \
            or <uintptr_t>data % RNNKERN_ALIGNMENT:
        raise ValueError(f"expected an aligned block of {bytes} bytes")
    return data


cdef class Pointers:
    """Addresses of the weights (or of their gradients), as WEIGHTS lists them, for each layer and direction."""

    cdef object arrays
    cdef object memory
    cdef void **data

    def __cinit__(self, arrays, Net net, int64_t copies=1):
        cdef int64_t count = net.c.num_layers * net.c.num_directions, layer, at, size
        if len(arrays) != count * len(WEIGHTS):
            raise ValueError(f"expected {count * len(WEIGHTS)} weight arrays, got {len(arrays)}")
        self.arrays = arrays
        self.memory = np.zeros(max(1, len(arrays)), np.uintp)
        self.data = <void **>cnp.PyArray_DATA(<cnp.ndarray>self.memory)
        for at in range(len(arrays)):
            layer = at // (len(WEIGHTS) * net.c.num_directions)
            size = rnnkern_weight_size(&net.c, layer, <rnnkern_weight><int>(at % len(WEIGHTS)))
            self.data[at] = plain(arrays[at], type_of(net), copies * size)


def sizes(Net net, Call call):
    """(packed, tape, forward workspace, backward workspace) in bytes."""
    cdef rnnkern_sizes_t s
    check(rnnkern_sizes(&net.c, &call.c, &s))
    return s.packed, s.tape, s.forward_workspace, s.backward_workspace


def plan(Net net, Call call):
    """(whether there are functions for just these options, one of REASONS, threads, (rows, vectors, lanes) of a register tile,
    rows of a chunk)."""
    cdef rnnkern_plan_t p
    check(rnnkern_plan(&net.c, &call.c, &p))
    tile = (p.tile_rows, p.tile_columns, p.vector_lanes)
    return bool(p.own_functions), REASONS[<int>p.reason], p.threads, tile, p.chunk_rows


def pack(Net net, weights, packed):
    """Packs weights, for each layer and direction as WEIGHTS lists them, None where there is none."""
    cdef Pointers pointers = Pointers(weights, net)
    cdef void *to = block(packed, 1)
    cdef rnnkern_status status
    with nogil:
        status = rnnkern_pack(&net.c, <const void *const *>pointers.data, to)
    check(status)


def forward(Net net, Call call, packed, x, hx, restart, y, hx_n, tape, workspace):
    """rnnkern_forward; sequences as (T, B, F) views, states as tuples of contiguous arrays."""
    needed = sizes(net, call)
    cdef void *packed_at = block(packed, needed[0])
    cdef void *tape_at = block(tape, needed[1])
    cdef void *workspace_at = block(workspace, needed[2])
    cdef rnnkern_rows x_at = rows_of(x, net, call, net.c.input_size)
    cdef rnnkern_rows y_at = rows_of(y, net, call, net.c.num_directions * width_of(net))
    cdef rnnkern_states hx_at = states_of(hx, net, call.c.rows)
    cdef rnnkern_states restart_at = states_of(restart, net, restart_rows(call))
    cdef rnnkern_states hx_n_at = states_of(hx_n, net, call.c.rows)
    cdef rnnkern_status status
    with nogil:
        status = rnnkern_forward(&net.c, &call.c, packed_at, x_at, hx_at, restart_at, y_at, hx_n_at, tape_at, workspace_at)
    check(status)


def backward(Net net, Call call, packed, x, tape, dy, dhx_n, dx, dhx, drestart, grads, workspace):
    """rnnkern_backward; grads is a list as the weights of pack, or None."""
    needed = sizes(net, call)
    cdef Pointers pointers = None if grads is None else Pointers(grads, net, call.c.rows if call.c.row_grads else 1)
    cdef void *const *grads_at = NULL if grads is None else <void *const *>pointers.data
    cdef void *packed_at = block(packed, needed[0])
    cdef void *tape_at = block(tape, needed[1])
    cdef void *workspace_at = block(workspace, needed[3])
    cdef rnnkern_rows x_at = rows_of(x, net, call, net.c.input_size)
    cdef rnnkern_rows dy_at = rows_of(dy, net, call, net.c.num_directions * width_of(net))
    cdef rnnkern_rows dx_at = rows_of(dx, net, call, net.c.input_size)
    cdef rnnkern_states dhx_n_at = states_of(dhx_n, net, call.c.rows)
    cdef rnnkern_states dhx_at = states_of(dhx, net, call.c.rows)
    cdef rnnkern_states drestart_at = states_of(drestart, net, restart_rows(call))
    cdef rnnkern_status status
    with nogil:
        status = rnnkern_backward(&net.c, &call.c, packed_at, x_at, tape_at, dy_at, dhx_n_at, dx_at, dhx_at,
                                  drestart_at, grads_at, workspace_at)
    check(status)


cdef class Stepper:
    """Single steps of causal layers in one call each, on memory that is there already.

    One thread at a time has that memory. What is out of the ordinary is left to the caller before anything is done.
    """

    cdef rnnkern_call call
    cdef readonly Net net
    cdef object packed, workspace
    cdef void *packed_at
    cdef void *workspace_at
    cdef int64_t most
    cdef int most_threads
    cdef atomic_flag busy

    def __cinit__(self, *args, **kwargs):
        atomic_flag_clear(&self.busy)

    def bind(self, Net net, packed, workspace, int64_t rows, int threads):
        """Steps of at most so many rows on at most so many threads, with these packed weights."""
        needed = sizes(net, Call(1, rows, None, None, RESTART_ZERO, KEEP_NONE, 1, 0.0, 0, threads))
        if net.c.num_directions != 1:
            raise ValueError("the layers must be causal")
        cdef void *packed_at = block(packed, needed[0])
        cdef void *workspace_at = block(workspace, needed[2])
        self.packed_at, self.workspace_at = packed_at, workspace_at
        self.net, self.packed, self.workspace, self.most = net, packed, workspace, rows
        self.call.steps = self.call.segment = 1
        self.call.threads = self.most_threads = threads

    cdef int claim(self) except -1:
        if atomic_flag_test_and_set(&self.busy):
            raise RuntimeError("this stream is in use by another thread")
        return 0

    def enter(self):
        """Claims the memory for this thread; RuntimeError where another one has it."""
        self.claim()

    def leave(self):
        atomic_flag_clear(&self.busy)

    cdef int run(self, int64_t rows, const void *x, rnnkern_states before, rnnkern_states after, void *y) except -1:
        """One step; `before` may be `after`, and y NULL. The caller has claimed the memory."""
        cdef rnnkern_rows x_at, y_at
        cdef rnnkern_states none
        cdef rnnkern_status status
        none.h = none.c = NULL
        x_at.data, x_at.step, x_at.row = <void *>x, rows * self.net.c.input_size, self.net.c.input_size
        y_at.data, y_at.step, y_at.row = y, rows * width_of(self.net), width_of(self.net)
        x_at.layer = y_at.layer = 0
        self.call.rows = rows
        self.call.first_step ^= 1  # so that steps read the matrices by turns from either end: turned_group in gemm.h
        with nogil:
            status = rnnkern_forward(&self.net.c, &self.call, self.packed_at, x_at, before, none, y_at, after, NULL,
                                     self.workspace_at)
        return check(status)

    cdef int64_t rows_in(self, array, int64_t features) noexcept:
        """B of a contiguous (B, features) array, 1 of a (features,) one, -1 of anything else."""
        if not cnp.PyArray_CheckExact(array):
            return -1
        cdef cnp.ndarray a = array
        cdef int ndim = cnp.PyArray_NDIM(a)
        if ndim < 1 or ndim > 2 or cnp.PyArray_TYPE(a) != type_of(self.net) or not cnp.PyArray_ISCARRAY_RO(a) or \
                cnp.PyArray_DIM(a, ndim - 1) != features:
            return -1
        return cnp.PyArray_DIM(a, 0) if ndim == 2 else 1

    cdef cnp.ndarray empty(self, int ndim, int64_t rows, int64_t features):
        cdef cnp.npy_intp shape[2]
        shape[0] = rows
        shape[ndim - 1] = features
        return cnp.PyArray_EMPTY(ndim, shape, type_of(self.net), 0)

    def cell(self, x, hx, int threads):
        """The next state of one layer from x (B, I) or (I,) and hx, as functional has it.

        None where it is out of the ordinary, or another thread has the memory.
        """
        if threads > self.most_threads or atomic_flag_test_and_set(&self.busy):
            return None
        try:
            return self.next_state(x, hx, threads)
        finally:
            atomic_flag_clear(&self.busy)

    cdef object next_state(self, x, hx, int threads):
        cdef rnnkern_net *net = &self.net.c
        cdef bint two = net.cell == RNNKERN_LSTM
        cdef int64_t rows = self.rows_in(x, net.input_size)
        cdef rnnkern_states before, after
        cdef int ndim
        if net.cell == RNNKERN_SRU or rows < 0 or rows > self.most:
            return None
        ndim = cnp.PyArray_NDIM(<cnp.ndarray>x)
        before.h = before.c = after.c = NULL
        if hx is not None:
            if two and (type(hx) is not tuple or len(<tuple>hx) != 2):
                return None
            h, c = hx if two else (hx, None)
            if not self.fits(h, rows, ndim, width_of(self.net)) or \
                    (two and not self.fits(c, rows, ndim, net.hidden_size)):
                return None
            before.h = cnp.PyArray_DATA(<cnp.ndarray>h)
            before.c = cnp.PyArray_DATA(<cnp.ndarray>c) if two else NULL
        h = self.empty(ndim, rows, width_of(self.net))
        after.h = cnp.PyArray_DATA(<cnp.ndarray>h)
        if two:
            c = self.empty(ndim, rows, net.hidden_size)
            after.c = cnp.PyArray_DATA(<cnp.ndarray>c)
        self.call.threads = threads
        self.run(rows, cnp.PyArray_DATA(<cnp.ndarray>x), before, after, NULL)
        return (h, c) if two else h

    cdef bint fits(self, array, int64_t rows, int ndim, int64_t features) noexcept:
        return self.rows_in(array, features) == rows and cnp.PyArray_NDIM(<cnp.ndarray>array) == ndim


cdef class StreamBase(Stepper):
    """A Stepper with states, (L, B, P or H) arrays, and such arrays of fewer rows, for as many as it steps at once."""

    cdef readonly tuple _states
    cdef tuple some
    cdef rnnkern_states at, some_at
    cdef int64_t batch
    cdef cnp.ndarray taken, chosen  # for each row a byte, zero but while rows are checked, and a place for rows

    def hold(self, Net net, packed, workspace, int threads, tuple states, tuple some):
        """Steps of the rows of these states with these packed weights. In one call, so that no error, be it a
        KeyboardInterrupt, leaves half of it."""
        cdef int64_t batch = states[0].shape[1], rows = some[0].shape[1]
        cdef rnnkern_states at = states_of(states, net, batch), some_at = states_of(some, net, rows)
        cdef cnp.ndarray taken = np.zeros(batch, np.uint8), chosen = np.empty(batch, np.int64)
        if rows < min(batch, 1):
            raise ValueError("a step needs memory for a row")
        self.bind(net, packed, workspace, rows, threads)
        self._states, self.some, self.at, self.some_at = states, some, at, some_at
        self.batch, self.taken, self.chosen = batch, taken, chosen

    def step(self, x, out=None, rows=None):
        """One step.

        Args:
            x: inputs (B, I); where one row advances also (I,).
            out: an array for the outputs, contiguous; without it a new one is made.
            rows: the rows that advance, distinct integers (n,); x and the outputs are then (n, I) and (n, P).
                Other rows keep their state. By default all rows advance.

        Returns:
            Outputs of the last layer, (B, P), or (P,) for x (I,), P the proj_size or H: out where it is given.

        Raises:
            TypeError, ValueError: an argument of the wrong kind, dtype or shape, or a row out of range. No row has
                advanced.
            RuntimeError: another thread is using the stream.
        """
        self.claim()
        try:
            y = self.ordinary(x, out, rows)
            return self._general_step(x, out, rows) if y is None else y
        finally:
            atomic_flag_clear(&self.busy)

    cdef object ordinary(self, x, out, rows):
        """A step with arguments that can be taken as they are; else None."""
        if self._states is None:
            return None
        cdef int64_t n = self.batch
        cdef const int64_t *index = NULL
        cdef cnp.ndarray y
        cdef const char *x_at
        cdef char *y_at
        if rows is not None:
            if not self.are_rows(rows):
                return None
            n, index = cnp.PyArray_SIZE(<cnp.ndarray>rows), <const int64_t *>cnp.PyArray_DATA(self.chosen)
        if self.rows_in(x, self.net.c.input_size) != n:
            return None
        cdef int ndim = cnp.PyArray_NDIM(<cnp.ndarray>x)
        if out is None:
            y = self.empty(ndim, n, width_of(self.net))
        elif self.fits(out, n, ndim, width_of(self.net)) and cnp.PyArray_ISWRITEABLE(<cnp.ndarray>out):
            y = out
        else:
            return None
        x_at, y_at = <const char *>cnp.PyArray_DATA(<cnp.ndarray>x), <char *>cnp.PyArray_DATA(y)
        if x_at < y_at + cnp.PyArray_NBYTES(y) and y_at < x_at + cnp.PyArray_NBYTES(<cnp.ndarray>x):
            return None
        self.advance(n, x_at, y_at, index)
        return y

    cdef bint are_rows(self, rows) noexcept:
        """Whether it is a contiguous int64 (n,) array of distinct rows in range; then `chosen` holds them, safe from
        another thread that writes into the array meanwhile."""
        if not cnp.PyArray_CheckExact(rows):
            return False
        cdef cnp.ndarray a = rows
        if cnp.PyArray_NDIM(a) != 1 or cnp.PyArray_TYPE(a) != cnp.NPY_INT64 or not cnp.PyArray_ISCARRAY_RO(a):
            return False
        cdef const int64_t *index = <const int64_t *>cnp.PyArray_DATA(a)
        cdef uint8_t *taken = <uint8_t *>cnp.PyArray_DATA(self.taken)
        cdef int64_t *chosen = <int64_t *>cnp.PyArray_DATA(self.chosen)
        cdef int64_t n = cnp.PyArray_DIM(a, 0), good = 0, row, i
        while good < n:
            row = index[good]
            if not 0 <= row < self.batch or taken[row]:
                break
            taken[row] = True
            chosen[good] = row
            good += 1
        for i in range(good):
            taken[chosen[i]] = False
        return good == n

    def _advance(self, x, y, rows):
        """One step of all rows, or of the rows (n,), int64, distinct and in range; x (n, I) and y (n, P) contiguous
        and apart. The caller has claimed the memory."""
        cdef int64_t n = self.batch if rows is None else cnp.PyArray_SIZE(<cnp.ndarray>rows)
        self.advance(n, <const char *>plain(x, type_of(self.net), n * self.net.c.input_size),
                     <char *>plain(y, type_of(self.net), n * width_of(self.net)),
                     <const int64_t *>plain(rows, cnp.NPY_INT64, n))

    cdef int advance(self, int64_t n, const char *x, char *y, const int64_t *index) except -1:
        """A step of n rows, of all or of those of the index; of so many at once that their gates stay in the cache."""
        cdef size_t item = 4 if self.net.c.dtype == 0 else 8
        cdef size_t of_h = width_of(self.net) * item, of_c = self.net.c.hidden_size * item
        cdef int64_t first = 0, count
        cdef bint dense = index == NULL and (self.net.c.num_layers == 1 or n <= self.most)
        cdef rnnkern_states states = self.at if dense else self.some_at
        while True:
            count = min(self.most, n - first)
            if not dense:
                self.exchange(index, first, count, False)
            self.run(count, x + first * self.net.c.input_size * item, states, states, y + first * of_h)
            if not dense:
                self.exchange(index, first, count, True)
            first += count
            if first >= n:
                return 0
            if dense:
                states.h = NULL if states.h == NULL else <char *>states.h + count * of_h
                states.c = NULL if states.c == NULL else <char *>states.c + count * of_c

    cdef void exchange(self, const int64_t *index, int64_t first, int64_t n, bint back) noexcept:
        """Copies the states of the rows index[first] ... index[first + n - 1], or of the rows first ... first + n - 1, to
        where they lie densely, or back."""
        cdef size_t item = 4 if self.net.c.dtype == 0 else 8
        self.move(<char *>self.at.h, <char *>self.some_at.h, width_of(self.net) * item, index, first, n, back)
        self.move(<char *>self.at.c, <char *>self.some_at.c, self.net.c.hidden_size * item, index, first, n, back)

    cdef void move(self, char *all_rows, char *dense, size_t size, const int64_t *index, int64_t first, int64_t n,
                   bint back) noexcept:
        cdef int64_t layer, i, row
        if all_rows == NULL:
            return
        for layer in range(self.net.c.num_layers):
            for i in range(n):
                row = first + i if index == NULL else index[first + i]
                if back:
                    memcpy(all_rows + (layer * self.batch + row) * size, dense + (layer * n + i) * size, size)
                else:
                    memcpy(dense + (layer * n + i) * size, all_rows + (layer * self.batch + row) * size, size)


def activate(int level, function, cnp.ndarray x):
    """The kernels' activation, a name or (name, alpha, beta), of a contiguous float array."""
    if x.dtype not in DTYPES or not cnp.PyArray_ISCARRAY_RO(x):
        raise ValueError("expected a contiguous float32 or float64 array")
    cdef cnp.ndarray y = np.empty_like(x)
    cdef int dtype = DTYPES.index(x.dtype)
    cdef rnnkern_function f = function_of(function)
    cdef rnnkern_status status
    with nogil:
        status = rnnkern_activate(<rnnkern_dtype>dtype, level, f, cnp.PyArray_SIZE(x), cnp.PyArray_DATA(x),
                                  cnp.PyArray_DATA(y))
    check(status)
    return y


def draw_masks(dtype, int level, str kind, double probability, uint64_t seed, int64_t layer, int direction,
               int64_t step, int64_t first_row, int64_t rows, int64_t n):
    """A mask (rows, n), one of MASKS, of units 0..n-1 of rows first_row.. at a step, as forward draws it."""
    cdef cnp.ndarray mask = np.empty((rows, n), dtype)
    cdef int of = DTYPES.index(mask.dtype), which = MASKS.index(kind)
    cdef rnnkern_status status
    with nogil:
        status = rnnkern_draw_masks(<rnnkern_dtype>of, level, <rnnkern_mask>which, probability, seed, layer, direction,
                                    step, first_row, rows, n, cnp.PyArray_DATA(mask))
    check(status)
    return mask
