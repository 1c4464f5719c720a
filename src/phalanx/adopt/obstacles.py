"""Name what a session cannot share out, whatever the loop looks like.

`OBSTACLES` is the open table: each entry looks at the whole script and yields findings. Those that
need the training loop are in `loop_obstacles`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst as cst

from phalanx.adopt.findings import ScriptFinding, refuse
from phalanx.adopt.loops import find_backwards
from phalanx.adopt.script import ScriptSource, argument, called, receiver

Check = Callable[[ScriptSource], Iterator[ScriptFinding]]

_ADAPTERS = dict.fromkeys(
    ("lightning", "pytorch_lightning"),
    "Trainer(strategy=PhalanxStrategy()), see docs/how-to-frameworks.md, or the loop as plain "
    "PyTorch in the script",
)
_FRAMEWORK_LOOPS = {
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "fastai": "fastai",
    "ignite": "Ignite",
    "catalyst": "Catalyst",
    "skorch": "skorch",
    "composer": "Composer",
}
_ENVIRONMENTS = {"gym", "gymnasium", "pettingzoo", "stable_baselines3", "torchrl", "dm_control"}
_OTHER_FRAMEWORKS = {"jax": "JAX", "flax": "Flax", "mxnet": "MXNet", "paddle": "PaddlePaddle"}
_PROCESSES = re.compile(
    r"^(torch\.)?multiprocessing\.(\w+\.)?(Process|Pool|spawn|start_processes)$|"
    r"^os\.fork$|ProcessPoolExecutor$|^(\w+\.)*mp\.(spawn|Process|Pool)$"
)
_TENSORFLOW_TAPE = re.compile(r"GradientTape$")


def _lbfgs(script: ScriptSource) -> Iterator[ScriptFinding]:
    for call in script.calls:
        if called(call) == "LBFGS":
            yield refuse(
                script.line(call),
                "lbfgs",
                "L-BFGS evaluates the loss several times within one step",
                "its line search needs the loss of the whole batch each time; gradients cannot be "
                "exchanged in between",
                "a first-order optimiser such as Adam, or one process",
            )


def _sparse(script: ScriptSource) -> Iterator[ScriptFinding]:
    for call in script.calls:
        sparse = argument(call, "sparse")
        is_sparse = sparse is not None and script.code(sparse.value) == "True"
        if called(call) == "SparseAdam" or (is_sparse and "Embedding" in called(call)):
            yield refuse(
                script.line(call),
                "sparse-gradients",
                "sparse gradients",
                "gradients are exchanged as one dense buffer",
                "sparse=False and a dense optimiser",
            )


def _environment(script: ScriptSource) -> Iterator[ScriptFinding]:
    found = script.imports() & _ENVIRONMENTS
    for call in script.calls:
        target = receiver(call)
        text = "" if target is None else script.code(target)
        acts = called(call) in ("step", "reset") and re.search(r"\benvs?$", text)
        makes = script.qualified(call).split(".")[0] in found
        if acts or makes:
            yield refuse(
                script.line(call),
                "reinforcement-learning",
                "reinforcement learning: samples come from an environment",
                "what is sampled hangs on the weights, so there is no data set to share out",
                "one process, or a library for distributed rollouts",
            )
            return


def _optimizer_per_layer(script: ScriptSource) -> Iterator[ScriptFinding]:
    kinds = (cst.ListComp, cst.DictComp, cst.GeneratorExp, cst.List, cst.Dict)
    for call in script.calls:
        name = script.qualified(call)
        if not name.startswith("torch.optim.") or "lr_scheduler" in name:
            continue
        around = next((a for a in script.ancestors(call) if isinstance(a, kinds)), None)
        owner = script.class_of(call)
        is_module = owner is not None and any(
            re.search(r"Module|Linear|Conv|Layer", script.code(base.value)) for base in owner.bases
        )
        if is_module and "self.parameters()" in script.code(call):
            yield refuse(
                script.line(call),
                "optimizer-per-layer",
                "a module with an optimiser of its own",
                "layers that update themselves have no common gradient to exchange, and no common "
                "step",
                "one optimiser over the parameters of the whole model, stepped once per batch",
            )
        elif around is not None:
            yield refuse(
                script.line(call),
                "optimizer-per-layer",
                "a collection of optimisers",
                "the session follows one step per batch and optimiser under a name of its own",
                "one optimiser with several parameter groups, or one name for each (a GAN's two)",
            )
    for call in script.calls:
        if called(call) == "register_post_accumulate_grad_hook":
            yield refuse(
                script.line(call),
                "optimizer-per-layer",
                "updates inside backward() by a hook",
                "gradients are exchanged at that place",
                "one optimizer.step() after backward()",
            )


def _processes(script: ScriptSource) -> Iterator[ScriptFinding]:
    for call in script.calls:
        name = script.qualified(call)
        if _PROCESSES.search(name):
            yield refuse(
                script.line(call),
                "multiprocessing",
                f"`{script.code(call.func)}` starts processes of the script's own",
                "workers are started by `phalanx launch`; each runs the script once, and a forked "
                "one would speak for its parent",
                "call the function directly, once, and leave the number of workers to launch",
            )


def _half(script: ScriptSource) -> Iterator[ScriptFinding]:
    for call in script.calls:
        target = receiver(call)
        text = "" if target is None else script.code(target)
        if called(call) in ("half", "bfloat16") and re.search(r"model$|net$|Net\w*$", text):
            yield refuse(
                script.line(call),
                "half-weights",
                "weights in half precision",
                "the exchange and the servers hold weights in 32 bits",
                "weights in float32 and torch.autocast around the forward pass",
            )


def _random_split(script: ScriptSource) -> Iterator[ScriptFinding]:
    seeded = any(re.search(r"seed", called(call)) for call in script.calls)
    numpy_seeded = any(
        re.search(r"random\.seed$|seed_everything|set_seed", script.qualified(call))
        for call in script.calls
    )
    for call in script.calls:
        if called(call) == "random_split" and not seeded and argument(call, "generator", 2) is None:
            yield refuse(
                script.line(call),
                "unseeded-split",
                "random_split without a seed",
                "every worker would hold out other samples, and train on the others' test set",
                "random_split(..., generator=torch.Generator().manual_seed(0))",
            )
        if (
            called(call) == "train_test_split"
            and argument(call, "random_state") is None
            and not numpy_seeded
        ):
            yield refuse(
                script.line(call),
                "unseeded-split",
                "train_test_split without random_state",
                "every worker would hold out other samples, and train on the others' test set",
                "train_test_split(..., random_state=0)",
            )


def _framework_loop(script: ScriptSource) -> Iterator[ScriptFinding]:
    for package in sorted(script.imports() & set(_FRAMEWORK_LOOPS)):
        yield refuse(
            0,
            "framework-loop",
            f"{_FRAMEWORK_LOOPS[package]} runs the training loop",
            "the session needs the loop in the script: its batches, backward() and step()",
            _ADAPTERS.get(package, "the loop as plain PyTorch in the script"),
        )
    for call in script.calls:
        name = script.qualified(call)
        if name.startswith(("transformers.", "trl.")) and name.endswith("Trainer"):
            yield refuse(
                script.line(call),
                "framework-loop",
                f"{name.split('.')[-1]} of {name.split('.')[0]} runs the training loop",
                "the session needs the loop in the script: its batches, backward() and step()",
                "phalanx.integrations.huggingface.PhalanxTrainer in its place "
                "(docs/how-to-frameworks.md), or the loop as plain PyTorch",
            )


def _tensorflow(script: ScriptSource) -> Iterator[ScriptFinding]:
    for call in script.calls:
        if _TENSORFLOW_TAPE.search(script.qualified(call)):
            yield refuse(
                script.line(call),
                "gradient-tape",
                "tf.GradientTape: a training loop of TensorFlow",
                "a session taps PyTorch's backward and optimiser",
                "the model as a job with `backend: tensorflow` (docs/how-to-tensorflow.md)",
            )
            return
    if not script.imports() & {"tensorflow", "keras", "tf_keras"}:
        return
    for call in script.calls:
        if called(call) in ("fit", "fit_generator") and receiver(call) is not None:
            yield refuse(
                script.line(call),
                "keras-fit",
                f"`{script.code(call.func)}()`: Keras runs the training loop",
                "a session taps loops of PyTorch",
                "Keras 3 on torch: phalanx launch runs the script as it is; otherwise "
                "phalanx.fit(make_model, x, y, epochs=..., workers=..., strategy=...), where "
                "make_model is an importable function that returns it, with logits as output",
            )
            return


def _other_framework(script: ScriptSource) -> Iterator[ScriptFinding]:
    for package in sorted(script.imports() & set(_OTHER_FRAMEWORKS)):
        if "torch" not in script.imports():
            yield refuse(
                0,
                "other-framework",
                f"{_OTHER_FRAMEWORKS[package]} and not PyTorch",
                "a session taps PyTorch's backward and optimiser",
                "the training as a PyTorch script",
            )


def _no_training(script: ScriptSource) -> Iterator[ScriptFinding]:
    others = {"tensorflow", "keras", "tf_keras", *_FRAMEWORK_LOOPS}
    if find_backwards(script) or script.imports() & others:
        return
    handed = next(
        (
            call
            for call in script.calls
            if any("optim" in script.code(arg.value) for arg in call.args)
            and re.search("train|fit|epoch|run", called(call))
        ),
        None,
    )
    if handed is not None:
        yield refuse(
            script.line(handed),
            "loop-elsewhere",
            f"the training loop is behind `{script.code(handed.func)}`, in another file",
            "adopt reads one file and has to see backward() and its loop",
            "adopt the file that holds the loop, or move that function into this one",
        )
    else:
        yield refuse(
            0,
            "no-training",
            "no call of backward(): no training loop of PyTorch",
            "there is nothing to share out",
            "adopt the script that trains",
        )


OBSTACLES: dict[str, Check] = {
    "lbfgs": _lbfgs,
    "sparse-gradients": _sparse,
    "reinforcement-learning": _environment,
    "optimizer-per-layer": _optimizer_per_layer,
    "multiprocessing": _processes,
    "half-weights": _half,
    "unseeded-split": _random_split,
    "framework-loop": _framework_loop,
    "tensorflow": _tensorflow,
    "other-framework": _other_framework,
    "no-training": _no_training,
}
"""Checks by the name of what they look for; all run on every script."""


def obstacles(script: ScriptSource) -> list[ScriptFinding]:
    """Return everything that prevents rewriting before the loop is looked at."""
    return [finding for check in OBSTACLES.values() for finding in check(script)]
