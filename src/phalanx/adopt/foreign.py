"""Remove what another launcher needs: Accelerate, DDP, DataParallel, and fixed CUDA devices.

The result is a plain script that may use `session.chief`, `session.rank` and `session.size`.
What has no counterpart is refused by its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from phalanx.adopt.edits import Edits
from phalanx.adopt.findings import FindingSeverity, ScriptFinding, refuse
from phalanx.adopt.script import ScriptSource, argument, called, key_of, receiver

_GROUP_CALLS = {"init_process_group", "destroy_process_group", "barrier", "set_device"}
_COLLECTIVES = {"all_reduce", "all_gather", "all_gather_object", "reduce", "broadcast", "gather"}
_WRAPPERS = {"DistributedDataParallel": "ddp", "DDP": "ddp", "DataParallel": "data-parallel"}
_VARIABLES = {"RANK": "rank", "LOCAL_RANK": "rank", "WORLD_SIZE": "size", "SLURM_PROCID": "rank"}
_GUARD = re.compile(r"cuda|gpu|device|ddp|distributed|multi|parallel", re.IGNORECASE)


@dataclass
class Stripping:
    """State of one removal: the script, the changes so far, and what was found."""

    script: ScriptSource
    edits: Edits
    findings: list[ScriptFinding]
    session: str

    def changed(self, node: cst.CSTNode, name: str, what: str, why: str) -> None:
        """Note a change, once per kind."""
        if not any(one.name == name for one in self.findings):
            line = self.script.line(node)
            self.findings.append(ScriptFinding(line, FindingSeverity.CHANGED, name, what, why))

    def is_guarded(self, node: cst.CSTNode) -> bool:
        """Say whether a node only runs if there is a GPU or another launcher."""
        return any(
            (isinstance(above, cst.If) and _GUARD.search(self.script.code(above.test)))
            or (isinstance(above, cst.IfExp) and _GUARD.search(self.script.code(above.test)))
            for above in self.script.ancestors(node)
        )


def strip_launchers(script: ScriptSource, session: str) -> tuple[str, list[ScriptFinding]]:
    """Return the text without other launchers' code, and what was changed or refused.

    Args:
        script: The script as it was written.
        session: Name that the session will have.
    """
    work = Stripping(script, Edits(script), [], session)
    for strip in (_accelerate, _wrappers, _process_group, _samplers, _environment, _cuda):
        strip(work)
    launcher = next((f for f in work.findings if f.name in ("sampler", "accelerate")), None)
    if launcher is not None:
        work.findings.append(
            ScriptFinding(
                launcher.line,
                FindingSeverity.NOTE,
                "global-batch",
                "the loader's batch was that of one process",
                "the session takes it as that of all workers together",
                "batch_size times the number of workers, to keep the number of updates",
            )
        )
    return work.edits.apply(), work.findings


def _statement_is(script: ScriptSource, call: cst.Call) -> bool:
    """Say whether a call is a statement of its own."""
    above = script.parent(call)
    return isinstance(above, cst.Expr)


def _wrappers(work: Stripping) -> None:
    script = work.script
    for call in script.calls:
        kind = _WRAPPERS.get(called(call)) or _WRAPPERS.get(script.qualified(call).split(".")[-1])
        if kind is None or not call.args:
            continue
        if work.is_guarded(call):
            work.findings.append(
                ScriptFinding(
                    script.line(call),
                    FindingSeverity.NOTE,
                    kind,
                    f"`{called(call)}` under a condition on devices or launchers",
                    "the condition does not hold under `phalanx launch`, which sets no RANK and "
                    "trains on the CPU",
                )
            )
            continue
        work.changed(
            call,
            kind,
            f"`{called(call)}` removed",
            "the session exchanges gradients; the model stays as it is",
        )
        inner = call.args[0].value
        assign = script.parent(call)
        keys = [key_of(t.target) for t in assign.targets] if isinstance(assign, cst.Assign) else []
        if keys and key_of(inner) in keys and len(keys) == 1:
            work.edits.delete(script.statement(call))
        else:
            work.edits.unwrap(call, inner)
        for key in keys:
            _unwrap_module(work, key)


def _unwrap_module(work: Stripping, key: str | None) -> None:
    for node in work.script.find(work.script.module, cst.Attribute):
        if node.attr.value == "module" and key_of(node.value) == key:
            work.edits.unwrap(node, node.value)


def _process_group(work: Stripping) -> None:
    script = work.script
    for call in script.calls:
        name = script.qualified(call)
        if called(call) in _GROUP_CALLS and re.search(
            r"distributed|dist\b|cuda|process_group", name
        ):
            if work.is_guarded(call):
                continue
            if not _statement_is(script, call):
                work.findings.append(_other(script, call, name))
                continue
            work.changed(
                call,
                "process-group",
                f"`{called(call)}` removed",
                "`phalanx launch` forms the group",
            )
            work.edits.delete(script.statement(call))
        elif (
            name.startswith("torch.distributed.")
            and called(call) in _COLLECTIVES
            and not work.is_guarded(call)
        ):
            work.findings.append(
                refuse(
                    script.line(call),
                    "own-collective",
                    f"`{script.code(call.func)}` exchanges values itself",
                    "the group of the script's own launcher does not exist",
                    "session.report(name=(sum, count)) adds over workers and returns the mean",
                )
            )
    for package, what in (("horovod", "Horovod"), ("deepspeed", "DeepSpeed"), ("ray", "Ray Train")):
        if package in script.imports():
            work.findings.append(
                refuse(
                    0,
                    "other-launcher",
                    f"written for {what}",
                    "its calls have no counterpart that can be written line by line",
                    "the script for one machine; docs/how-to-adopt.md has a table of lines",
                )
            )


def _other(script: ScriptSource, node: cst.CSTNode, name: str) -> ScriptFinding:
    return refuse(
        script.line(node),
        "other-launcher",
        f"`{name}` has no counterpart",
        "it belongs to another launcher",
        "remove it, or write what it is for in plain PyTorch",
    )


def _samplers(work: Stripping) -> None:
    script = work.script
    keys: set[str] = set()
    for call in (c for c in script.calls if called(c) == "DistributedSampler"):
        if work.is_guarded(call):
            continue
        work.changed(
            call,
            "sampler",
            "`DistributedSampler` removed",
            "session.data shares out the samples of a plain loader",
        )
        assign = script.parent(call)
        if isinstance(assign, cst.Assign):
            keys |= {k for t in assign.targets if (k := key_of(t.target)) is not None}
            work.edits.delete(script.statement(call))
    for call in (c for c in script.calls if "DataLoader" in called(c)):
        sampler = argument(call, "sampler")
        if sampler is None:
            continue
        value = sampler.value
        direct = isinstance(value, cst.Call) and called(value) == "DistributedSampler"
        if not direct and key_of(value) not in keys:
            continue
        made = value if direct else _maker(script, key_of(value))
        shuffles = _shuffles(script, made)
        given = argument(call, "shuffle")
        if given is not None:
            work.edits.replace(given.value, "True" if shuffles else "False")
            _drop_argument(work, call, sampler)
        else:
            work.edits.replace(sampler, f"shuffle={shuffles}{_comma(script, sampler)}")
    for call in script.calls:
        target = receiver(call)
        is_removed = any(one.name == "sampler" for one in work.findings)
        if (
            is_removed
            and called(call) == "set_epoch"
            and target is not None
            and _statement_is(script, call)
        ):
            work.edits.delete(script.statement(call))


def _comma(script: ScriptSource, arg: cst.Arg) -> str:
    return "," if script.code(arg).rstrip().endswith(",") else ""


def _drop_argument(work: Stripping, call: cst.Call, arg: cst.Arg) -> None:
    index = list(call.args).index(arg)
    script = work.script
    if index + 1 < len(call.args):
        start = script.span(arg)[0]
        end = script.span(call.args[index + 1])[0]
    else:
        start = script.span(call.args[index - 1])[1] if index else script.span(arg)[0]
        end = script.span(arg)[1]
    work.edits.cut(start, end)


def _maker(script: ScriptSource, key: str | None) -> cst.BaseExpression | None:
    for binding in script.bindings.get(key or "", []):
        if isinstance(binding.value, cst.Call) and called(binding.value) == "DistributedSampler":
            return binding.value
    return None


def _shuffles(script: ScriptSource, made: cst.BaseExpression | None) -> bool:
    given = argument(made, "shuffle", 3) if isinstance(made, cst.Call) else None
    return given is None or script.code(given.value) != "False"


def _environment(work: Stripping) -> None:
    script = work.script
    guarded = all(work.is_guarded(c) for c in script.calls if called(c) == "init_process_group")
    has_group = any(called(c) == "init_process_group" for c in script.calls)
    for node, variable in _reads(script):
        name = _VARIABLES.get(variable)
        if name is None:
            continue
        if has_group and not guarded:
            outer = script.parent(script.parent(node) or node)
            whole = outer if isinstance(outer, cst.Call) and called(outer) == "int" else node
            work.changed(
                node,
                "rank",
                f"{variable} replaced by {work.session}.{name}",
                "`phalanx launch` sets no RANK, so that other launchers' code stays quiet",
            )
            work.edits.replace(whole, f"{work.session}.{name}")
        elif not work.is_guarded(node) and not (isinstance(node, cst.Call) and len(node.args) > 1):
            work.findings.append(
                refuse(
                    script.line(node),
                    "reads-rank",
                    f"reads {variable} from the environment",
                    "`phalanx launch` sets none, so that scripts start no group of their own",
                    f"session.{name} in its place",
                )
            )
    for call in script.calls:
        name = script.qualified(call)
        if name.startswith("torch.distributed.") and not work.is_guarded(call):
            if called(call) == "get_rank":
                work.edits.replace(call, f"{work.session}.rank")
            elif called(call) == "get_world_size":
                work.edits.replace(call, f"{work.session}.size")
    _rank_devices(work)
    for assign in script.find(script.module, cst.Assign):
        target = script.code(assign.targets[0].target)
        if re.match(r"os\.environ\[['\"](MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE)", target):
            work.edits.delete(script.statement(assign))


def _rank_devices(work: Stripping) -> None:
    """Remove `.to(local_rank)`: a number means a GPU."""
    script = work.script
    ranks = {
        key
        for key, bindings in script.bindings.items()
        for b in bindings
        if b.value is not None
        and re.search(r"RANK|get_rank|\bdevice_count\b", script.code(b.value))
    }
    for call in script.calls:
        target = receiver(call)
        if called(call) != "to" or target is None or len(call.args) != 1:
            continue
        if key_of(call.args[0].value) in ranks:
            what = f"`.to({script.code(call.args[0].value)})` removed"
            work.changed(call, "cuda", what, "workers train on the CPU")
            work.edits.unwrap(call, target)


def _reads(script: ScriptSource) -> list[tuple[cst.CSTNode, str]]:
    found: list[tuple[cst.CSTNode, str]] = [
        (node, _string(script.code(node.slice[0])))
        for node in script.find(script.module, cst.Subscript)
        if script.qualified(node.value) == "os.environ" and not _is_target(script, node)
    ]
    found += [
        (call, _string(script.code(call.args[0].value)))
        for call in script.calls
        if script.qualified(call) in ("os.environ.get", "os.getenv") and call.args
    ]
    return found


def _is_target(script: ScriptSource, node: cst.CSTNode) -> bool:
    return isinstance(script.parent(node), cst.AssignTarget)


def _string(text: str) -> str:
    return text.strip("'\"")


def _cuda(work: Stripping) -> None:
    script = work.script
    why = "workers train on the CPU"
    for call in script.calls:
        target = receiver(call)
        if target is None or work.is_guarded(call):
            continue
        if called(call) == "cuda" and script.code(target) != "torch":
            work.changed(call, "cuda", "`.cuda()` removed", why)
            if _statement_is(script, call):
                work.edits.delete(script.statement(call))
            else:
                work.edits.unwrap(call, target)
    for text in script.find(script.module, cst.SimpleString):
        if not re.fullmatch(r"cuda(:\d+)?", _string(script.code(text))):
            continue
        if _is_device(script, text) and not work.is_guarded(text):
            work.changed(text, "cuda", f"{script.code(text)} replaced by 'cpu'", why)
            quote = script.code(text)[0]
            work.edits.replace(text, f"{quote}cpu{quote}")
    for formatted in script.find(script.module, cst.FormattedString):
        if re.match(r"f['\"]cuda:", script.code(formatted)) and not work.is_guarded(formatted):
            work.changed(formatted, "cuda", f"{script.code(formatted)} replaced by 'cpu'", why)
            work.edits.replace(formatted, '"cpu"')


def _is_device(script: ScriptSource, text: cst.CSTNode) -> bool:
    above = script.parent(text)
    if isinstance(above, cst.Arg):
        call = script.parent(above)
        if isinstance(call, cst.Call):
            keyword = above.keyword.value if above.keyword else ""
            return called(call) in ("to", "device") or keyword in ("device", "map_location")
    if isinstance(above, cst.Assign):
        return any("device" in script.code(t.target).lower() for t in above.targets)
    return False


def _accelerate(work: Stripping) -> None:
    script = work.script
    made = [c for c in script.calls if called(c) == "Accelerator"]
    if "accelerate" not in script.imports() or not made:
        return
    from phalanx.adopt.accelerate import strip_accelerate

    strip_accelerate(work, made)
