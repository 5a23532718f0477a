"""A graph of `torch.export` as a module that TorchScript can read."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.graph import CodeGen

__all__ = ["plain_graph"]


def smaller(one: int, other: int) -> int:
    """Give the smaller of two sizes, where they are known as well as where they are symbols."""
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        return min(one, other)
    return torch.sym_min(one, other)  # type: ignore[return-value]


def larger(one: int, other: int) -> int:
    """Give the larger of two sizes, likewise."""
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        return max(one, other)
    return torch.sym_max(one, other)  # type: ignore[return-value]


_PLAIN = {torch.sym_min: smaller, torch.sym_max: larger}
_SIZE_OF = torch.ops.aten.sym_size.int
_CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range")
_OF_MEMORY = ("device", "pin_memory")  # written as they were: on the CPU


def plain_graph(module: fx.GraphModule) -> fx.GraphModule:
    """Give a graph whose sizes, checks and arguments are such as a module's own code has, so that it can be scripted.

    As it is loaded, `torch.jit.script` refuses its wrapping, and `torch.jit.trace` keeps the sizes that it saw as
    numbers. Its checks of inputs are left out: what exports the module again makes its own.

    Args:
        module: As ``torch.export.load(file).module()`` gives it; it stays as it is. One that takes other things than
            tensors by position, or gives more than one tensor, comes back as it is: it can be captured, not scripted.
    """
    if not _is_flat(module):
        return module
    graph = fx.Graph()
    outputs = graph.graph_copy(module.graph, {})
    graph.output(outputs[0])  # type: ignore[index]
    for node in list(graph.nodes):
        _make_plain(node)
    graph.set_codegen(CodeGen())
    graph.lint()
    return fx.GraphModule(module, graph)


def _is_flat(module: fx.GraphModule) -> bool:
    """Tell whether the inputs are tensors by position, and the output is one tensor."""
    in_spec, out_spec = module._in_spec, module._out_spec
    arguments, keywords = in_spec.children()
    return bool(
        out_spec is not None
        and out_spec.is_leaf()
        and not keywords.num_leaves
        and all(one.is_leaf() for one in arguments.children())
    )


def _make_plain(node: fx.Node) -> None:
    target: Any = node.target
    if node.op == "call_module" and str(target).startswith("_guards"):
        node.graph.erase_node(node)
    elif node.op == "call_function" and target is _SIZE_OF:
        node.op, node.target = "call_method", "size"
    elif node.op == "call_function" and target in _PLAIN:
        node.target = _PLAIN[target]
    elif isinstance(target, torch._ops.OpOverload):
        if target.overloadpacket.__name__.startswith(_CHECKS):
            node.graph.erase_node(node)
            return
        node.target = target.overloadpacket
        node.kwargs = {name: value for name, value in node.kwargs.items() if name not in _OF_MEMORY}
