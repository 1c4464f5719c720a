"""Find the parts of a network that does not name them: its layers, traced with torch.fx.

A part is a layer with weights (a child, or a child of an `nn.Sequential`) together with what
follows it and reads nothing else: activations, pools, dropout, reshaping. Traced networks draw
dropout per part only when they are split.
"""

from __future__ import annotations

from torch import fx, nn
from torch.fx.passes.split_module import split_module

from phalanx.errors import SpecError
from phalanx.model.parts import INPUT, PartedNetwork
from phalanx.model.shape import flatten_rows

_HINT = "; name its parts with phalanx.model.parts.PartedNetwork"


def parts_of(module: nn.Module) -> PartedNetwork:
    """Return the network by its parts, with the same weights; a `PartedNetwork` is unchanged.

    Raises:
        SpecError: The network cannot be traced, or cut into parts that pass one tensor each.
    """
    if isinstance(module, PartedNetwork):
        return module
    try:
        # It depends on the number of axes, which a trace cannot know.
        graph = _Tracer(autowrap_functions=(flatten_rows,)).trace(module)
        traced = fx.GraphModule(module, graph)
    except Exception as error:  # tracing runs the user's code, which may raise anything
        raise SpecError(
            f"the parts of {type(module).__name__} could not be found: "
            f"{type(error).__name__}: {error}{_HINT}"
        ) from error
    names = _assign(traced)
    order = list(dict.fromkeys(names.values()))
    numbers = {name: number for number, name in enumerate(order)}
    cut = split_module(traced, module, lambda node: numbers[names[node]])
    return _assemble(cut, order)


class _Tracer(fx.Tracer):
    """Trace into the network and its sequences; every other module is a leaf."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not isinstance(m, nn.Sequential)


def _assign(traced: fx.GraphModule) -> dict[fx.Node, str]:
    """Map each operation to its part, by the path of the layer that it follows."""
    found: dict[fx.Node, str] = {}
    waiting: list[fx.Node] = []
    for node in traced.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        before = list(dict.fromkeys(found[one] for one in node.all_input_nodes if one in found))
        weighty = node.op == "call_module" and _has_weights(traced.get_submodule(str(node.target)))
        if weighty or (not waiting and not before and node.op == "call_module"):
            name = _unused(str(node.target), found)
            found[node] = name
            for one in waiting:
                found[one] = name
            waiting = []
        elif len(before) == 1 and not any(one in waiting for one in node.all_input_nodes):
            found[node] = before[0]
        else:
            # It joins several parts, or begins the network: assign it to the layer behind it.
            waiting.append(node)
    last = list(found.values())[-1] if found else "network"
    for one in waiting:
        found[one] = last
    # In the order of the graph, which `split_module` numbers parts by.
    return {node: found[node] for node in traced.graph.nodes if node in found}


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _unused(name: str, found: dict[fx.Node, str]) -> str:
    """Return an unused name: a layer called twice makes two parts that share its weights."""
    taken = set(found.values())
    number = 2
    fresh = name
    while fresh in taken:
        fresh = f"{name}-{number}"
        number += 1
    return fresh


def _assemble(cut: fx.GraphModule, order: list[str]) -> PartedNetwork:
    reads: dict[str, list[str]] = {}
    modules: dict[str, nn.Module] = {}
    owner: dict[fx.Node, str] = {}
    inputs = [node for node in cut.graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        raise SpecError(f"the network takes {len(inputs)} inputs; to be split it takes one{_HINT}")
    owner[inputs[0]] = INPUT
    for node in cut.graph.nodes:
        if node.op == "call_module":
            name = order[int(str(node.target).rpartition("_")[2])]
            owner[node] = name
            reads[name] = [owner[one] for one in node.args if isinstance(one, fx.Node)]
            modules[name] = cut.get_submodule(str(node.target))
        elif node.op not in ("placeholder", "output"):
            raise SpecError(
                f"part '{owner.get(node.args[0], '?')}' passes more than one tensor on{_HINT}"
            )
    return PartedNetwork(
        {name.replace(".", "/"): module for name, module in modules.items()},
        reads={
            name.replace(".", "/"): [one.replace(".", "/") for one in sources]
            for name, sources in reads.items()
        },
        separate=[name.replace(".", "/") for name in modules],
    )
