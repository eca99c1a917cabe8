"""The libraries that are compared, one class each, all with the same interface.

    Peer.version()              the library's version, None where it is not installed
    Peer(problem)               the layer of that problem; raises UnsupportedError
    peer.contenders(work)       {label: function of no arguments} that do the work; {} if none does

Works: "inference", "training" (forward, and backward to weights, input and initial state) and
"step" (one step from Python). A function returns the arrays that are compared: y and the final h;
dx, dh and the gradients of the weights; the next h.
"""

import importlib
import importlib.metadata
import math
from functools import cached_property, partial

import native
import numpy as np

import rnnkern
from rnnkern import reference

try:
    import threadpoolctl
except ImportError:
    threadpoolctl = None


class UnsupportedError(Exception):
    """This library does not do this."""


class Peer:
    name = ""
    packs_once = True  # weights are prepared ahead of inference, not on each call
    masks = False  # whether lengths and resets are possible

    def __init__(self, problem):
        if not self.masks and (problem.ragged or problem.resets_rate):
            raise UnsupportedError
        self.problem = problem

    @classmethod
    def version(cls):
        try:
            importlib.import_module(cls.name)
            return importlib.metadata.version(cls.name)
        except ImportError:
            return None

    def contenders(self, work):
        function = getattr(self, work, None)
        return {self.name: function} if function else {}


class Rnnkern(Peer):
    name = "rnnkern"
    masks = True

    def __init__(self, problem):
        super().__init__(problem)
        self.options = {"num_threads": problem.threads}
        if problem.lengths is not None:
            self.options["lengths"] = problem.lengths
        if problem.resets is not None:
            self.options["resets"] = problem.resets

    @classmethod
    def version(cls):
        return rnnkern.__version__

    def _made(self, suffix="", name_end="_l0"):
        problem = self.problem
        kind = problem.cell.removesuffix("_before")
        options = {"reset_after": kind == problem.cell} if kind == "gru" else {}
        make = getattr(rnnkern, kind.upper() + suffix)
        made = make(*problem.shape[2:], dtype=problem.dtype, **options)
        made.load_state_dict(
            {name.removesuffix("_l0") + name_end: a for name, a in problem.params.items()}
        )
        return made

    @cached_property
    def layer(self):
        return self._made()

    def contenders(self, work):
        if work == "inference":
            return {
                self.name: partial(self.inference, self.layer),
                "frozen": partial(self.inference, self.layer.freeze()),
            }
        if work == "step":
            return self._steps()
        return super().contenders(work)

    def inference(self, layer):
        y, hx_n = layer(self.problem.x, self.problem.hx, **self.options)
        return y, hx_n[0] if isinstance(hx_n, tuple) else hx_n

    def training(self):
        problem, layer = self.problem, self.layer
        layer.zero_grad()
        _, _, tape = layer.record(problem.x, problem.hx, **self.options)
        dx, dhx = tape.backward(problem.dy, num_threads=problem.threads)
        dh = dhx[0] if isinstance(dhx, tuple) else dhx
        return dx, dh, layer.grads["weight_ih_l0"], layer.grads["weight_hh_l0"]

    def _steps(self):
        x = self.problem.x[0]
        states = tuple(part[0] for part in self.problem.states)
        hx = states if len(states) > 1 else states[0]
        cell = partial(self._made("Cell", "").freeze(), x, hx, **self.options)
        found = {"rnnkern cell": lambda: first_of(cell())}
        if hasattr(self.layer, "stream"):
            step = self.layer.stream(1).step
            found["rnnkern stream"] = lambda: (step(x),)
        return found


def first_of(states):
    """(h,) of h or of (h, c)."""
    return (states[0],) if isinstance(states, tuple | list) else (states,)


class UnfusedC(Peer):
    """The baseline of unfused.c; one thread."""

    name = "unfused"
    packs_once = False

    def __init__(self, problem):
        super().__init__(problem)
        if problem.threads > 1 or problem.dtype != "float32":
            raise UnsupportedError

    @classmethod
    def version(cls):
        return rnnkern.__version__

    @cached_property
    def _run(self):
        return native.Unfused(self.problem)

    def inference(self):
        y = self._run()
        return y, y[-1:]


class NumPy(Peer):
    """The reference of rnnkern, which is plain NumPy; on small shapes alone.

    Needs threadpoolctl, which holds NumPy's BLAS to as many threads as the others.
    """

    name = "numpy"
    packs_once = False

    def __init__(self, problem):
        super().__init__(problem)
        if threadpoolctl is None or math.prod(problem.shape) / problem.shape[2] > 300_000:
            raise UnsupportedError
        threadpoolctl.threadpool_limits(problem.threads, "blas")
        kind = problem.cell.removesuffix("_before")
        self.options = {"reset_after": kind == problem.cell} if kind == "gru" else {}
        self.forward = getattr(reference, f"{kind}_forward")
        self.backward = getattr(reference, f"{kind}_backward")

    def contenders(self, work):
        return {} if work == "step" else super().contenders(work)

    def _forward(self):
        problem = self.problem
        return self.forward(problem.x, problem.params, problem.hx, **self.options)

    def inference(self):
        y, hx_n, _ = self._forward()
        return y, *first_of(hx_n)

    def training(self):
        dx, dhx, grads = self.backward(self._forward()[2], self.problem.dy)
        return dx, *first_of(dhx), grads["weight_ih_l0"], grads["weight_hh_l0"]


class Torch(Peer):
    name = "torch"
    packs_once = False
    masks = True

    def __init__(self, problem):
        super().__init__(problem)
        if problem.cell == "gru_before":
            raise UnsupportedError
        import torch

        self.torch = torch
        torch.set_num_threads(problem.threads)
        self.module = self._made(problem.cell.upper())
        self.x, self.dy = torch.from_numpy(problem.x), torch.from_numpy(problem.dy)
        self.states = tuple(torch.from_numpy(part) for part in problem.states)

    def _made(self, kind, name_end="_l0"):
        made = getattr(self.torch.nn, kind)(*self.problem.shape[2:])
        made.load_state_dict(
            {
                name.removesuffix("_l0") + name_end: self.torch.from_numpy(a)
                for name, a in self.problem.params.items()
            }
        )
        return made

    def contenders(self, work):
        problem = self.problem
        if work == "step":
            return {
                "torch module": lambda: tuple(h[0] for h in self.inference()[1:]),
                "torch cell": partial(self._step, self._made(self._cell_name, ""), self.x[0]),
            }
        if work == "training" and problem.ragged:
            return {"torch packed": partial(self.training, self._packed)}
        if work == "training" and problem.resets is not None:
            cell = self._made(self._cell_name, "")
            return {
                "torch step loop": partial(self.training, self._module_loop),
                "torch cell loop": partial(self.training, partial(self._cell_loop, cell), cell),
            }
        return super().contenders(work)

    @property
    def _cell_name(self):
        return self.problem.cell.upper() + "Cell"

    def _hx(self, states):
        return states if len(states) > 1 else states[0]

    def inference(self):
        with self.torch.inference_mode():
            y, hx_n = self.module(self.x, self._hx(self.states))
        return y.numpy(), first_of(hx_n)[0].numpy()

    def _step(self, cell, x):
        with self.torch.inference_mode():
            return tuple(
                h.numpy() for h in first_of(cell(x, self._hx([s[0] for s in self.states])))
            )

    def training(self, run=None, module=None):
        """autograd.grad adds into no .grad, which suits torch; `run` maps x and states to y."""
        x = self.x.detach().requires_grad_()
        states = tuple(part.detach().requires_grad_() for part in self.states)
        y = (run or self._whole)(x, states)
        parameters = tuple((module or self.module).parameters())
        found = self.torch.autograd.grad(y, (x, *states, *parameters), self.dy)
        dx, dh, dw_ih, dw_hh = (found[i] for i in (0, 1, len(states) + 1, len(states) + 2))
        return dx.numpy(), dh.numpy(), dw_ih.numpy(), dw_hh.numpy()

    def _whole(self, x, states):
        return self.module(x, self._hx(states))[0]

    def _packed(self, x, states):
        rnn = self.torch.nn.utils.rnn
        lengths = self.torch.from_numpy(self.problem.lengths)
        packed = rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, _ = self.module(packed, self._hx(states))
        return rnn.pad_packed_sequence(y, total_length=self.problem.shape[0])[0]

    @cached_property
    def _kept(self):
        return self.torch.from_numpy(1 - self.problem.resets[:, :, None].astype(np.float32))

    def _module_loop(self, x, states):
        outputs = []
        for t in range(self.problem.shape[0]):
            states = tuple(part * self._kept[t] for part in states)
            y, states = self.module(x[t : t + 1], self._hx(states))
            states = states if isinstance(states, tuple) else (states,)
            outputs.append(y)
        return self.torch.cat(outputs)

    def _cell_loop(self, cell, x, states):
        outputs = []
        states = tuple(part[0] for part in states)
        for t in range(self.problem.shape[0]):
            states = cell(x[t], self._hx(tuple(part * self._kept[t] for part in states)))
            states = states if isinstance(states, tuple) else (states,)
            outputs.append(states[0])
        return self.torch.stack(outputs)


def onnx_model(problem):
    """The layer as an ONNX model of fixed shapes: inputs x, h, c, outputs y, h_n, c_n."""
    from onnx import TensorProto, helper, numpy_helper

    # Rows of the weights: ONNX has i o f c and z r n, torch i f g o and r z n.
    order = {"rnn": [0], "lstm": [0, 3, 1, 2], "gru": [1, 0, 2], "gru_before": [1, 0, 2]}
    kind = problem.cell.removesuffix("_before").upper()
    hidden = problem.shape[3]

    def gates(name):
        array = problem.params[name]
        return array.reshape(-1, hidden, *array.shape[1:])[order[problem.cell]].reshape(array.shape)

    bias = np.concatenate([gates("bias_ih_l0"), gates("bias_hh_l0")])
    weights = {"w": gates("weight_ih_l0"), "r": gates("weight_hh_l0"), "b": bias}
    initial = ["h", "c"][: len(problem.states)]
    final = ["h_n", "c_n"][: len(problem.states)]
    options = {"linear_before_reset": int(problem.cell == "gru")} if kind == "GRU" else {}
    inputs = ["x", "w", "r", "b", "", *initial]
    node = helper.make_node(kind, inputs, ["y", *final], hidden_size=hidden, **options)

    def declared(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    steps, rows = problem.shape[:2]
    graph = helper.make_graph(
        [node],
        problem.cell,
        [declared(name, a.shape) for name, a in feeds(problem).items()],
        [declared("y", (steps, 1, rows, hidden))]
        + [declared(name, (1, rows, hidden)) for name in final],
        [numpy_helper.from_array(a[None], name) for name, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    return model.SerializeToString()


def feeds(problem):
    return {"x": problem.x, **dict(zip("hc", problem.states, strict=False))}


class _OnnxPeer(Peer):
    """A library that runs the ONNX model of the layer: `_run` returns y and h_n."""

    @classmethod
    def version(cls):
        try:
            importlib.import_module("onnx")
        except ImportError:
            return None
        return super().version()

    def inference(self):
        y, h_n = self._run()
        return y[:, 0], h_n

    def step(self):
        return (self._run()[1][0],)


class OnnxRuntime(_OnnxPeer):
    name = "onnxruntime"

    def __init__(self, problem):
        super().__init__(problem)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = problem.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            onnx_model(problem), options, providers=["CPUExecutionProvider"]
        )
        self._run = partial(self.session.run, ["y", "h_n"], feeds(problem))


class OpenVino(_OnnxPeer):
    name = "openvino"

    def __init__(self, problem):
        super().__init__(problem)
        import openvino

        core = openvino.Core()
        options = {
            "INFERENCE_NUM_THREADS": problem.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # or it would take bf16 where there is AMX
        }
        self.compiled = core.compile_model(core.read_model(onnx_model(problem)), "CPU", options)
        self.request = self.compiled.create_infer_request()
        self.feeds = feeds(problem)

    def _run(self):
        found = self.request.infer(self.feeds, share_inputs=True, share_outputs=True)
        return found["y"], found["h_n"]


class OneDnn(Peer):
    """oneDNN itself, by onednn.c."""

    name = "onednn"
    CELLS = ("rnn", "lstm", "gru", "gru_before")

    @classmethod
    def version(cls):
        library = native.onednn_library()
        if library is None:
            return None
        number = library.onednn_version()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def contenders(self, work):
        """Opens the layer for the work: oneDNN prepares inference and training differently."""
        training = work == "training"
        run = partial(self._execute, self._open(training))
        if training:
            return {self.name: lambda: run() or self._gradients()}
        if work == "inference":
            return {self.name: lambda: run() or (self.operands[6], self.operands[7])}
        x = self.problem.x.copy()
        return {self.name: partial(self._step, run, x)}

    def _step(self, run, x):
        """A new input goes in, and the state is carried on, as in a stream."""
        self.operands[0][...] = x
        run()
        for i in range(len(self.problem.states)):
            self.operands[1 + i][...] = self.operands[7 + i]
        return (self.operands[7][0],)

    def _gates(self, array):
        """Rows in oneDNN's order, or back: z r n, torch has r z n; those of the LSTM agree."""
        if not self.problem.cell.startswith("gru"):
            return array
        rows = array.reshape(3, self.problem.shape[3], -1)[[1, 0, 2]]
        return np.ascontiguousarray(rows).reshape(array.shape)

    def _bias(self):
        b_ih, b_hh = (self._gates(self.problem.params[f"bias_{k}_l0"]) for k in ("ih", "hh"))
        if self.problem.cell != "gru":
            return b_ih + b_hh
        n = self.problem.shape[3]  # U h + b_hn stands apart there, as a fourth gate
        return np.concatenate([b_ih[: 2 * n] + b_hh[: 2 * n], b_ih[2 * n :], b_hh[2 * n :]])

    def _open(self, training):
        problem, params = self.problem, self.problem.params
        weights = [self._gates(params[f"weight_{k}_l0"]) for k in ("ih", "hh")]
        final = [np.empty_like(part) for part in problem.states]
        missing = [None] * (2 - len(final))
        given = [a.copy() for a in (problem.x, *problem.states)]
        self.operands = [*given, *missing, *weights, self._bias()]
        self.operands += [np.empty_like(problem.dy), *final, *missing]
        self.gradients = [None if a is None else np.zeros_like(a) for a in self.operands]
        self.gradients[6] = problem.dy
        self._lists = native.pointers(self.operands), native.pointers(self.gradients)
        operands, gradients = self._lists
        handle = native.Handle(
            native.onednn_library(),
            "onednn",
            self.CELLS.index(problem.cell),
            problem.threads,
            *map(native.SIZE, problem.shape),
            operands,
            gradients if training else None,
        )
        if not handle.pointer:
            raise UnsupportedError
        return handle

    def _execute(self, handle):
        if native.onednn_library().onednn_run(native.POINTER(handle.pointer)):
            raise RuntimeError("oneDNN reports an error")

    def _gradients(self):
        dx, dh, _, dw_ih, dw_hh = self.gradients[:5]
        return dx, dh, self._gates(dw_ih), self._gates(dw_hh)


PEERS = {
    peer.name: peer for peer in (Rnnkern, UnfusedC, NumPy, Torch, OnnxRuntime, OpenVino, OneDnn)
}
LIBRARIES = ("torch", "onnxruntime", "openvino", "onednn")


def contenders_for(work, problem, names):
    """{label: function} of all named peers that do this work on this problem."""
    found = {}
    for name in names:
        try:
            found |= PEERS[name](problem).contenders(work)
        except UnsupportedError:
            continue
    return found
