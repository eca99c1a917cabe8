# cython: language_level=3, freethreading_compatible=True, embedsignature=True
"""The functions of csrc/rnnkern.h, one to one. Arguments come checked from functional.py; what is checked again here
is only what keeps a wrong array from being read as memory."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t

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
        pass
    ctypedef enum rnnkern_dtype:
        pass
    ctypedef enum rnnkern_activation:
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
        int64_t num_layers
        int64_t num_directions
    ctypedef struct rnnkern_call:
        int64_t steps
        int64_t rows
        const int64_t *lengths
        const uint8_t *resets
        rnnkern_restart restart_kind
        rnnkern_keep keep
        int64_t segment
        double dropout
        uint64_t seed
        int threads
        rnnkern_split split
    ctypedef struct rnnkern_sizes_t:
        size_t packed
        size_t tape
        size_t forward_workspace
        size_t backward_workspace
    ctypedef enum rnnkern_reason:
        pass
    ctypedef struct rnnkern_plan_t:
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
    ctypedef struct rnnkern_states:
        void *h
        void *c
    const char *rnnkern_level_name(int)
    int rnnkern_level_supported(int)
    int rnnkern_team_size()
    rnnkern_status rnnkern_sizes(const rnnkern_net *, const rnnkern_call *, rnnkern_sizes_t *)
    rnnkern_status rnnkern_plan(const rnnkern_net *, const rnnkern_call *, rnnkern_plan_t *)
    rnnkern_status rnnkern_pack(const rnnkern_net *, const void *const *, void *)
    rnnkern_status rnnkern_forward(const rnnkern_net *, const rnnkern_call *, const void *, rnnkern_rows, rnnkern_states,
                                   rnnkern_states, rnnkern_rows, rnnkern_states, void *, void *)
    rnnkern_status rnnkern_backward(const rnnkern_net *, const rnnkern_call *, const void *, rnnkern_rows, void *,
                                    rnnkern_rows, rnnkern_states, rnnkern_rows, rnnkern_states, rnnkern_states,
                                    void *const *, void *)
    rnnkern_status rnnkern_activate(rnnkern_dtype, int, rnnkern_activation, int64_t, const void *, void *)
    rnnkern_status rnnkern_dropout_mask(rnnkern_dtype, double, uint64_t, int64_t, int64_t, int64_t, int64_t, void *)


# In the order of the enums of rnnkern.h.
CELLS = ("rnn_tanh", "rnn_relu", "lstm", "gru", "gru_before")
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
ACTIVATIONS = ("sigmoid", "tanh")
KEEP_NONE, KEEP_GATES, KEEP_STATES, KEEP_SEGMENTS = range(4)
RESTART_ZERO, RESTART_SHARED, RESTART_PER_ROW = range(3)
REASONS = ("one allowed", "small work", "small matrix", "one share", "rows", "units")
SPLITS = ("auto", "rows", "units")
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


cdef class Net:
    """What is computed: rnnkern_net."""

    cdef rnnkern_net c
    cdef readonly object dtype

    def __cinit__(self, str cell, dtype, int level, bint bias, int64_t input_size, int64_t hidden_size,
                  int64_t num_layers, int64_t num_directions):
        self.dtype = np.dtype(dtype)
        self.c.cell = <rnnkern_cell><int>CELLS.index(cell)
        self.c.dtype = <rnnkern_dtype><int>DTYPES.index(self.dtype)
        self.c.level = level
        self.c.bias = bias
        self.c.input_size = input_size
        self.c.hidden_size = hidden_size
        self.c.num_layers = num_layers
        self.c.num_directions = num_directions

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
    def num_layers(self):
        return self.c.num_layers

    @property
    def num_directions(self):
        return self.c.num_directions


cdef class Call:
    """On what: rnnkern_call. Keeps the arrays of lengths (int64) and resets (T, B, uint8) alive."""

    cdef rnnkern_call c
    cdef readonly object lengths, resets

    def __cinit__(self, int64_t steps, int64_t rows, lengths, resets, int restart_kind, int keep, int64_t segment,
                  double dropout, uint64_t seed, int threads, str split="auto"):
        self.c.steps = steps
        self.c.rows = rows
        self.c.restart_kind = <rnnkern_restart>restart_kind
        self.c.keep = <rnnkern_keep>keep
        self.c.segment = segment
        self.c.dropout = dropout
        self.c.seed = seed
        self.c.threads = threads
        self.c.split = <rnnkern_split><int>SPLITS.index(split)
        self.lengths = lengths
        self.resets = resets
        if lengths is not None:
            self.c.lengths = <const int64_t *>plain(lengths, cnp.NPY_INT64, rows)
        if resets is not None:
            self.c.resets = <const uint8_t *>plain(resets, cnp.NPY_UINT8, steps * rows)

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
    def segment(self):
        return self.c.segment

    @property
    def restart_kind(self):
        return <int>self.c.restart_kind

    def with_threads(self, int threads, str split="auto"):
        """The same call on another number of threads."""
        return Call(self.c.steps, self.c.rows, self.lengths, self.resets, self.c.restart_kind, self.c.keep,
                    self.c.segment, self.c.dropout, self.c.seed, threads, split)


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
    """A (T, B, F) view whose last axis is dense; None gives no data."""
    cdef rnnkern_rows rows
    rows.data = NULL
    rows.step = rows.row = 0
    if array is None:
        return rows
    cdef cnp.ndarray a = array
    if cnp.PyArray_NDIM(a) != 3:
        raise ValueError(f"expected a (T, B, {features}) view, got {(<object>a).shape}")
    cdef int64_t item = cnp.PyArray_ITEMSIZE(a)
    cdef bint strided = cnp.PyArray_SIZE(a) == 0 or (  # strides of an empty array mean nothing
        (features == 1 or cnp.PyArray_STRIDE(a, 2) == item)
        and cnp.PyArray_STRIDE(a, 0) % item == 0 and cnp.PyArray_STRIDE(a, 1) % item == 0)
    if cnp.PyArray_TYPE(a) != type_of(net) or not cnp.PyArray_ISBEHAVED_RO(a) or \
            cnp.PyArray_DIM(a, 0) != call.c.steps or cnp.PyArray_DIM(a, 1) != call.c.rows or \
            cnp.PyArray_DIM(a, 2) != features or not strided:
        raise ValueError(f"expected a (T, B, {features}) view with a dense last axis, got {(<object>a).shape}")
    rows.data = cnp.PyArray_DATA(a)
    rows.step = cnp.PyArray_STRIDE(a, 0) // item
    rows.row = cnp.PyArray_STRIDE(a, 1) // item
    return rows


cdef rnnkern_states states_of(states, Net net, int64_t rows) except *:
    """States (L*D, rows, H): a tuple (h, c), or (h,), or None."""
    cdef rnnkern_states s
    s.h = s.c = NULL
    cdef int64_t size = net.c.num_layers * net.c.num_directions * rows * net.c.hidden_size
    if states is not None:
        s.h = plain(states[0], type_of(net), size)
        if len(states) > 1:
            s.c = plain(states[1], type_of(net), size)
    return s


cdef int64_t restart_rows(Call call):
    return call.c.rows if call.c.restart_kind == RESTART_PER_ROW else 1


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
    """Addresses of the weights (or of their gradients): four for each layer and direction, 0 where there is none."""

    cdef object arrays
    cdef object memory
    cdef void **data

    def __cinit__(self, arrays, Net net):
        self.arrays = arrays
        self.memory = np.zeros(max(1, len(arrays)), np.uintp)
        self.data = <void **>cnp.PyArray_DATA(<cnp.ndarray>self.memory)
        cdef int64_t gates = 1 if net.c.cell < 2 else 4 if net.c.cell == 2 else 3
        cdef int64_t rows = gates * net.c.hidden_size
        cdef int64_t count = net.c.num_layers * net.c.num_directions
        if len(arrays) != 4 * count:
            raise ValueError(f"expected {4 * count} weight arrays, got {len(arrays)}")
        for i in range(4 * count):
            inputs = net.c.input_size if i // 4 < net.c.num_directions else net.c.num_directions * net.c.hidden_size
            size = rows * (inputs if i % 4 == 0 else net.c.hidden_size if i % 4 == 1 else 1)
            self.data[i] = plain(arrays[i], type_of(net), size)


def sizes(Net net, Call call):
    """(packed, tape, forward workspace, backward workspace) in bytes."""
    cdef rnnkern_sizes_t s
    check(rnnkern_sizes(&net.c, &call.c, &s))
    return s.packed, s.tape, s.forward_workspace, s.backward_workspace


def plan(Net net, Call call):
    """(one of REASONS, threads, (rows, vectors, lanes) of a register tile, rows of a chunk)."""
    cdef rnnkern_plan_t p
    check(rnnkern_plan(&net.c, &call.c, &p))
    return REASONS[<int>p.reason], p.threads, (p.tile_rows, p.tile_columns, p.vector_lanes), p.chunk_rows


def pack(Net net, weights, packed):
    """Packs weights (a list of 4*L*D arrays, biases None without bias) into the block `packed`."""
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
    cdef rnnkern_rows y_at = rows_of(y, net, call, net.c.num_directions * net.c.hidden_size)
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
    cdef Pointers pointers = None if grads is None else Pointers(grads, net)
    cdef void *const *grads_at = NULL if grads is None else <void *const *>pointers.data
    cdef void *packed_at = block(packed, needed[0])
    cdef void *tape_at = block(tape, needed[1])
    cdef void *workspace_at = block(workspace, needed[3])
    cdef rnnkern_rows x_at = rows_of(x, net, call, net.c.input_size)
    cdef rnnkern_rows dy_at = rows_of(dy, net, call, net.c.num_directions * net.c.hidden_size)
    cdef rnnkern_rows dx_at = rows_of(dx, net, call, net.c.input_size)
    cdef rnnkern_states dhx_n_at = states_of(dhx_n, net, call.c.rows)
    cdef rnnkern_states dhx_at = states_of(dhx, net, call.c.rows)
    cdef rnnkern_states drestart_at = states_of(drestart, net, restart_rows(call))
    cdef rnnkern_status status
    with nogil:
        status = rnnkern_backward(&net.c, &call.c, packed_at, x_at, tape_at, dy_at, dhx_n_at, dx_at, dhx_at,
                                  drestart_at, grads_at, workspace_at)
    check(status)


def activate(int level, str activation, cnp.ndarray x):
    """The kernels' sigmoid or tanh of a contiguous float array."""
    if x.dtype not in DTYPES or not cnp.PyArray_ISCARRAY_RO(x):
        raise ValueError("expected a contiguous float32 or float64 array")
    cdef cnp.ndarray y = np.empty_like(x)
    cdef int dtype = DTYPES.index(x.dtype), which = ACTIVATIONS.index(activation)
    cdef rnnkern_status status
    with nogil:
        status = rnnkern_activate(<rnnkern_dtype>dtype, level, <rnnkern_activation>which, cnp.PyArray_SIZE(x),
                                  cnp.PyArray_DATA(x), cnp.PyArray_DATA(y))
    check(status)
    return y


def dropout_mask(dtype, double dropout, uint64_t seed, int64_t layer, int64_t step, int64_t row, int64_t n):
    """The factors by which forward multiplies units 0..n-1 of a layer's output at (step, row)."""
    cdef cnp.ndarray mask = np.empty(n, dtype)
    check(rnnkern_dropout_mask(<rnnkern_dtype><int>DTYPES.index(mask.dtype), dropout, seed, layer, step, row, n,
                               cnp.PyArray_DATA(mask)))
    return mask
