"""Find the training loop: the passes over batches that hold `backward()`, and the epochs around.

Raises `Doubt` with the right sentence where a script trains in a way that is not of this form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from phalanx.adopt.findings import Doubt, ScriptFinding, refuse
from phalanx.adopt.flow import Frame, Origin, call_sites, frames, origin, parameter_owner
from phalanx.adopt.script import Loop, Scope, ScriptSource, called, key_of, receiver

_BARS = {"tqdm", "track", "alive_it", "tqdm_notebook", "progress_bar"}
_LOADER_NAME = re.compile(r"loader|dataloader|(^|_)dl($|_)|^dls?$", re.IGNORECASE)
_RANDOM = re.compile(r"(^|\.)(randint|randperm|permutation|choice|sample|random_sample|randrange)$")


@dataclass(frozen=True)
class TrainingLoop:
    """The one training loop of a script.

    Attributes:
        backwards: Calls of `backward` in it.
        frames: From the function of the first of these out to the module.
        batches: The loop over batches.
        batches_scope: Function that holds it.
        reads: The expression in its header that is the loader, without `enumerate` and `tqdm`.
        loader: Where that loader is made.
        part: Key of the training part where loaders are held in a dictionary.
        epochs: The loop over epochs; None for a single pass.
        body: Roots of all code that runs per batch, called functions included.
    """

    backwards: list[cst.Call]
    frames: list[Frame]
    batches: cst.For
    batches_scope: Scope
    reads: cst.BaseExpression
    loader: Origin
    part: str | None
    epochs: cst.For | None
    body: list[cst.CSTNode]


def find_backwards(script: ScriptSource) -> list[cst.Call]:
    """Return the calls that compute gradients of a loss."""
    return [c for c in script.calls if called(c) == "backward" and receiver(c) is not None]


def find_loop(script: ScriptSource) -> TrainingLoop:
    """Find the training loop.

    Raises:
        Doubt: There is none, there are several, or it does not read from a loader.
    """
    ways = [(call, frames(script, call)) for call in find_backwards(script)]
    found: dict[int, TrainingLoop] = {}
    for call, way in ways:
        loop = _loop_of(script, call, way)
        known = found.get(id(loop.batches))
        if known is not None:
            known.backwards.append(call)
        else:
            found[id(loop.batches)] = loop
    stepping = [one for one in found.values() if _steps(script, one)] or list(found.values())
    if len(stepping) > 1:
        lines = ", ".join(str(script.line(one.batches)) for one in stepping)
        raise Doubt(
            refuse(
                script.line(stepping[1].batches),
                "several-trainings",
                f"several training loops, at lines {lines}",
                "a session feeds one training loop",
                "one script per training, the later ones starting from the saved weights",
            )
        )
    return stepping[0]


def _steps(script: ScriptSource, loop: TrainingLoop) -> bool:
    return any(
        called(c) in ("step", "minimize") for root in loop.body for c in script.find(root, cst.Call)
    )


def _loop_of(script: ScriptSource, call: cst.Call, way: list[Frame]) -> TrainingLoop:
    chain: list[tuple[Loop, Frame]] = [(loop, frame) for frame in way for loop in frame.loops]
    for index, (loop, frame) in enumerate(chain):
        if not isinstance(loop, cst.For):
            continue
        reads = stripped(loop.iter)
        found = _loader(script, reads, loop, frame, chain[index + 1 :])
        if found is None:
            continue
        made, part, header = found
        _refuse_inner_steps(script, chain[:index], loop)
        epochs = _epochs(script, chain[index + 1 :])
        inner = way[: way.index(frame)]
        body = list(_reach(script, [loop.body, *(f.scope for f in inner)]))
        return TrainingLoop([call], way, loop, frame.scope, header, made, part, epochs, body)
    raise Doubt(_no_loader(script, call, chain, way))


def stripped(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the loader inside `enumerate(tqdm(loader))`."""
    while isinstance(node, cst.Call) and called(node) in _BARS | {"enumerate"} and node.args:
        node = node.args[0].value
    return node


def _loader(
    script: ScriptSource,
    reads: cst.BaseExpression,
    loop: cst.For,
    frame: Frame,
    outer: list[tuple[Loop, Frame]],
) -> tuple[Origin, str | None, cst.BaseExpression] | None:
    if isinstance(reads, cst.Subscript):
        return _loader_of_part(script, reads, frame, [one for one, _ in outer])
    if key_of(reads) is None:
        return None
    made = origin(script, reads, frame.scope)
    if made is None or made.value is None:
        return None
    if isinstance(made.value, cst.Call) and called(made.value) in _BARS | {"enumerate"}:
        # bar = tqdm(loader): the loader is one name further, the bar is made in every epoch.
        inner = stripped(made.value)
        further = origin(script, inner, made.scope)
        if further is not None and looks_like_loader(script, further):
            return further, None, inner
        return None
    return (made, None, reads) if looks_like_loader(script, made) else None


def looks_like_loader(script: ScriptSource, made: Origin) -> bool:
    """Say whether a variable is a DataLoader, as far as its maker or its name tell."""
    if all(_makes_loader(script, b.value) for b in made.makers):
        return True
    is_call = all(isinstance(b.value, cst.Call) for b in made.makers)
    return is_call and bool(_LOADER_NAME.search(made.key))


def _makes_loader(script: ScriptSource, value: cst.BaseExpression | None) -> bool:
    if not isinstance(value, cst.Call):
        return False
    name = called(value)
    if _LOADER_NAME.search(name):
        return True
    for owner in script.classes:
        if owner.name.value == name:
            return any(_LOADER_NAME.search(script.code(base.value)) for base in owner.bases)
    return False


def _loader_of_part(
    script: ScriptSource, reads: cst.Subscript, frame: Frame, outer: list[Loop]
) -> tuple[Origin, str | None, cst.BaseExpression] | None:
    """Return `loaders` and "train" for `for batch in loaders[phase]`, or loaders["train"]."""
    made = origin(script, reads.value, frame.scope)
    if made is None or made.value is None or len(reads.slice) != 1:
        return None
    if "DataLoader" not in script.code(made.value) and not _LOADER_NAME.search(made.key):
        return None
    index = reads.slice[0].slice
    if not isinstance(index, cst.Index):
        return None
    part = _literal(index.value)
    if part is None:
        phases = [
            loop
            for loop in outer
            if isinstance(loop, cst.For) and script.code(loop.target) == script.code(index.value)
        ]
        names = [_literal(e.value) for e in _elements(phases[0].iter)] if phases else []
        part = next((name for name in names if name and name.startswith("train")), None)
    if part is None or not re.search(rf"['\"]{part}['\"]", script.code(made.value)):
        return None
    return made, part, reads


def _literal(node: cst.BaseExpression) -> str | None:
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        return node.evaluated_value
    return None


def _elements(node: cst.BaseExpression) -> Iterator[cst.BaseElement]:
    if isinstance(node, cst.List | cst.Tuple):
        yield from node.elements


def _refuse_inner_steps(
    script: ScriptSource, inner: list[tuple[Loop, Frame]], batches: cst.For
) -> None:
    for loop, _ in inner:
        if any(called(c) == "step" for c in script.find(loop.body, cst.Call)):
            raise Doubt(
                refuse(
                    script.line(loop),
                    "several-updates",
                    "several updates for one batch of the loader",
                    "every update is one batch of the feed, cut over the workers; updates within a "
                    "batch cannot be counted or resumed",
                    f"one update per batch of the loop at line {script.line(batches)}",
                )
            )


def _epochs(script: ScriptSource, outer: list[tuple[Loop, Frame]]) -> cst.For | None:
    rest = [loop for loop, _ in outer if not _is_phases(loop)]
    if not rest:
        return None
    first = rest[0]
    if isinstance(first, cst.While):
        endless = script.code(first.test) in ("True", "1") and not has_break(script, first)
        raise Doubt(
            refuse(
                script.line(first),
                "endless-loop" if endless else "while-loop",
                f"`while {script.code(first.test)}` around the loop over batches",
                "the number of updates has to be known: workers share the samples of an epoch, "
                "and a resumed run starts in the middle",
                "`for epoch in range(n):`, or one loop over session.data(loader, steps=n)",
            )
        )
    if range_of(script, first) is None:
        raise Doubt(_repeated(script, first))
    if len(rest) > 1:
        raise Doubt(_repeated(script, rest[1]))
    return first


def _repeated(script: ScriptSource, loop: Loop) -> ScriptFinding:
    head = script.code(loop.iter) if isinstance(loop, cst.For) else script.code(loop.test)
    return refuse(
        script.line(loop),
        "several-trainings",
        f"the training is repeated by the loop over `{head}`",
        "a session trains one model once; folds and searches are several runs",
        "one run per turn of this loop: take its value as an argument of the script",
    )


def _is_phases(loop: Loop) -> bool:
    return isinstance(loop, cst.For) and any(
        (_literal(e.value) or "").startswith("train") for e in _elements(loop.iter)
    )


def has_break(script: ScriptSource, loop: Loop) -> bool:
    """Say whether a loop is left by `break` or `return`."""
    return any(True for _ in script.find(loop.body, cst.Break)) or any(
        True for _ in script.find(loop.body, cst.Return)
    )


def range_of(script: ScriptSource, loop: cst.For) -> cst.Call | None:
    """Return `range(...)` or `trange(...)` of a loop's header, inside `tqdm` too."""
    node = stripped(loop.iter)
    if isinstance(node, cst.Call) and called(node) in ("range", "trange"):
        return node
    return None


def _reach(script: ScriptSource, roots: list[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Yield roots and the functions of this file that they call."""
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        root = todo.pop(0)
        if id(root) in seen:
            continue
        seen.add(id(root))
        yield root
        todo += [
            function
            for function in script.functions
            if id(function) not in seen
            and any(script.inside(c, root) for c in call_sites(script, function))
        ]


def _no_loader(
    script: ScriptSource, call: cst.Call, chain: list[tuple[Loop, Frame]], way: list[Frame]
) -> ScriptFinding:
    """Say in which other way a script trains."""
    line = script.line(call)
    if not chain:
        return refuse(
            line,
            "no-loop",
            "`backward()` outside of any loop that this file shows",
            "a session counts updates by the loop over batches",
            "adopt the file that holds the loop over the loader, together with this code in it",
        )
    inner, frame = chain[0]
    roots = list(_reach(script, [inner.body, *(f.scope for f in way[: way.index(frame)])]))
    calls = [c for root in roots for c in script.find(root, cst.Call)]
    draws = next((c for c in calls if _RANDOM.search(script.qualified(c))), None)
    nexts = next((c for c in calls if called(c) == "next"), None)
    if nexts is not None:
        return refuse(
            script.line(nexts),
            "next-batch",
            "batches are drawn with next() and not by a loop",
            "the feed is the clock of a run: it ends an epoch, saves and resumes",
            "`for batch in session.data(loader, steps=n):` in place of next() and its iterator",
        )
    if draws is not None:
        return refuse(
            script.line(draws),
            "random-batches",
            f"batches are drawn by `{script.code(draws.func)}` from the global random state",
            "every worker would draw the same samples, or others than one process draws",
            "a Dataset of these samples in a DataLoader(shuffle=True), read through "
            "session.data(loader, steps=n)",
        )
    if isinstance(inner, cst.While):
        return refuse(
            script.line(inner),
            "endless-loop" if not has_break(script, inner) else "while-loop",
            f"`while {script.code(inner.test)}` is the training loop",
            "the number of updates has to be known, and the batches have to come from a loader",
            "`for batch in session.data(loader, steps=n):`",
        )
    span = range_of(script, inner)
    if span is not None and len(span.args) == 3:
        return refuse(
            script.line(inner),
            "slices",
            "batches are slices of arrays",
            "a slice is the same for all workers; the feed has to cut it",
            "DataLoader(TensorDataset(x, y), batch_size=...) in place of the slices",
        )
    if span is not None or _is_epoch_count(script, inner):
        return refuse(
            script.line(inner),
            "full-batch",
            "every update uses the whole data set: no loop over a loader",
            "there is no batch to cut over workers; a graph or a sequence that is one sample "
            "cannot be shared out",
            "a DataLoader of samples or of sampled subgraphs, if the problem allows it",
        )
    reads = stripped(inner.iter)
    if isinstance(reads, cst.Call) and called(reads) == "zip":
        return refuse(
            script.line(inner),
            "two-loaders",
            f"`{script.code(reads)}` reads several loaders at once",
            "a session cuts the batches of one loader",
            "one Dataset that returns the samples of both, in one DataLoader",
        )
    key = key_of(reads)
    owner = None if key is None else parameter_owner(script, key, frame.scope)
    if owner is not None and not call_sites(script, owner):
        return refuse(
            script.line(inner),
            "loop-elsewhere",
            f"`{script.code(reads)}` is a parameter of {owner.name.value}(), not called here",
            "adopt reads one file and has to see where loader, model and optimiser are made",
            "move the loop into the script that calls it, and adopt that",
        )
    return refuse(
        script.line(inner),
        "unknown-source",
        f"the loop reads from `{script.code(inner.iter)}`, which does not show to be a DataLoader",
        "the feed has to cut batches and to know how many there are",
        "a torch DataLoader, made once before the epochs and read by its name",
    )


def _is_epoch_count(script: ScriptSource, loop: cst.For) -> bool:
    return isinstance(loop.iter, cst.Call) and called(loop.iter) == "count"
