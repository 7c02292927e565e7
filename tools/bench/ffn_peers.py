"""What the feed-forward path on the CPU is measured beside: one class a library, the same calls.

A peer has the weights of several layers and runs its next layer at each call. One that this
Python lacks, or that does not take the dtype, raises Absent with the reason.
"""

import ctypes
import importlib
import importlib.metadata
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional

EPS = 1e-5


class Absent(Exception):
    """Why a peer cannot be measured."""


class Layer(NamedTuple):
    norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


Call = Callable[[], torch.Tensor]


def needed(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Absent(f"no Python package {name}") from error


def path(x: torch.Tensor, layer: Layer) -> torch.Tensor:
    n = functional.rms_norm(x, (x.shape[1],), layer.norm, EPS)
    product = functional.silu(functional.linear(n, layer.gate)) * functional.linear(n, layer.up)
    return x + functional.linear(product, layer.down)


def in_turn(layers: list, run: Callable[..., torch.Tensor]) -> Call:
    """A call that runs the next layer, the first one after the last."""
    state = {"next": 0}

    def call() -> torch.Tensor:
        layer = layers[state["next"]]
        state["next"] = (state["next"] + 1) % len(layers)
        return run(layer)

    return call


def torch_eager(layers: list[Layer], x: torch.Tensor) -> Call:
    return in_turn(layers, lambda layer: path(x, layer))


def torch_compile(layers: list[Layer], x: torch.Tensor) -> Call:
    compiled = torch.compile(path)
    if x.shape[0] > 1:
        torch._dynamo.mark_dynamic(x, 0)  # one compilation for every number of tokens but 1
    return in_turn(layers, lambda layer: compiled(x, layer))


def onednn_packed(layers: list[Layer], x: torch.Tensor) -> Call:
    """oneDNN's own kernels and packed weights, by the operators that PyTorch's compiler uses."""
    onednn = torch.ops.mkldnn
    tokens = x.shape[0]
    packed = [
        (layer.norm, *(onednn._reorder_linear_weight(w, tokens) for w in layer[1:]))
        for layer in layers
    ]

    def run(layer: tuple[torch.Tensor, ...]) -> torch.Tensor:
        norm, gate, up, down = layer
        n = functional.rms_norm(x, (x.shape[1],), norm, EPS)
        activated = onednn._linear_pointwise(n, gate, None, "swish", [], "")
        product = onednn._linear_pointwise.binary(n, activated, up, None, "mul")
        return onednn._linear_pointwise.binary(product, x, down, None, "add")

    return in_turn(packed, run)


class OnnxModel:
    """The layers one after another as one model, which its runtime optimises by itself."""

    def __init__(self, layers: list[Layer]) -> None:
        if layers[0].norm.dtype != torch.float32:
            raise Absent("its products on the CPU are FP32 alone")
        onnx = needed("onnx")
        self.runtime = needed("onnxruntime")
        helper, floats = onnx.helper, onnx.TensorProto.FLOAT
        nodes, weights, current = [], [], "x"

        def add(operator: str, inputs: list[str], **attributes: float) -> str:
            nodes.append(helper.make_node(operator, inputs, [f"t{len(nodes)}"], **attributes))
            return nodes[-1].output[0]

        for i, layer in enumerate(layers):
            names = [f"{field}{i}" for field in Layer._fields]
            for name, tensor in zip(names, layer, strict=True):
                value = tensor.T.contiguous() if tensor.dim() == 2 else tensor
                weights.append(onnx.numpy_helper.from_array(value.numpy(), name))
            n = add("SimplifiedLayerNormalization", [current, names[0]], axis=-1, epsilon=EPS)
            gate = add("MatMul", [n, names[1]])
            silu = add("Mul", [gate, add("Sigmoid", [gate])])
            product = add("Mul", [silu, add("MatMul", [n, names[2]])])
            current = add("Add", [current, add("MatMul", [product, names[3]])])
        hidden = layers[0].norm.shape[0]
        graph = helper.make_graph(
            nodes,
            "ffn",
            [helper.make_tensor_value_info("x", floats, ["tokens", hidden])],
            [helper.make_tensor_value_info(current, floats, ["tokens", hidden])],
            weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4
        self.session = self.runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.session.run(None, {"x": x.numpy()})[0])


class GgmlLayers:
    """ggml's graph of each layer, on the weights where they lie; activations between are FP32."""

    def __init__(self, layers: list[Layer]) -> None:
        self.g = needed("ggml")
        self.layers = layers
        self.threads = torch.get_num_threads()
        parameters = self.g.ggml_threadpool_params_default(self.threads)
        self.pool = self.g.ggml_threadpool_new(ctypes.byref(parameters))

    def tensor(self, context: Any, of: torch.Tensor) -> Any:
        kind = self.g.GGML_TYPE_BF16 if of.dtype == torch.bfloat16 else self.g.GGML_TYPE_F32
        rows = of.shape[0] if of.dim() == 2 else 1
        made = self.g.ggml_new_tensor_2d(context, kind, of.shape[-1], rows)
        made.contents.data = of.data_ptr()
        return made

    def graph(self, layer: Layer, x: torch.Tensor, y: torch.Tensor) -> Call:
        """y is computed in memory of the graph and copied out, as ggml's own programs do."""
        g = self.g
        tokens, hidden = x.shape
        inner = layer.gate.shape[0]
        room = (8 << 20) + 4 * tokens * (6 * hidden + 6 * inner)
        views = g.ggml_init(g.ggml_init_params(1 << 20, None, True))
        context = g.ggml_init(g.ggml_init_params(room, None, False))
        wide = layer.norm.float()
        weights = [self.tensor(views, tensor) for tensor in (wide, *layer[1:])]
        stream = self.tensor(views, x)
        n = g.ggml_mul(context, g.ggml_rms_norm(context, stream, EPS), weights[0])
        product = g.ggml_swiglu_split(
            context, g.ggml_mul_mat(context, weights[1], n), g.ggml_mul_mat(context, weights[2], n)
        )
        out = g.ggml_add(context, g.ggml_mul_mat(context, weights[3], product), stream)
        graph = g.ggml_new_graph(context)
        g.ggml_build_forward_expand(graph, out)
        plan = g.ggml_graph_plan(graph, self.threads, self.pool)
        work = (ctypes.c_uint8 * (plan.work_size + 64))()
        plan.work_data = ctypes.cast(work, ctypes.POINTER(ctypes.c_uint8))
        held = (views, context, wide, work)
        reference = ctypes.byref(plan)

        def run() -> torch.Tensor:
            assert held
            if g.ggml_graph_compute(graph, reference):
                raise RuntimeError("ggml_graph_compute failed")
            ctypes.memmove(y.data_ptr(), out.contents.data, y.numel() * 4)
            return y

        def free() -> None:
            g.ggml_free(context)
            g.ggml_free(views)

        run.free = free  # type: ignore[attr-defined]
        return run

    def call(self, x: torch.Tensor) -> Call:
        wide = x.float()
        y = torch.empty_like(wide)
        graphs = [self.graph(layer, wide, y) for layer in self.layers]
        call = in_turn(graphs, lambda graph: graph())
        call.held = wide  # type: ignore[attr-defined]
        call.free = lambda: [graph.free() for graph in graphs]  # type: ignore[attr-defined]
        return call


def versions() -> dict[str, str]:
    found = {}
    for package in ("onnxruntime", "ggml-python"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
