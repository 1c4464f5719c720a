"""Read a script, decide whether it can be shared out, and write the text that is.

The one entry of this package for commands and programs. Nothing of the script is executed.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import libcst as cst

from phalanx.adopt.chief import guard_effects
from phalanx.adopt.edits import Edits
from phalanx.adopt.epochs import count_epochs
from phalanx.adopt.feed import changed_finding, feed_loader
from phalanx.adopt.findings import Adoption, Doubt, FindingSeverity, ScriptFinding, refuse
from phalanx.adopt.foreign import strip_launchers
from phalanx.adopt.loop_obstacles import hidden_state, look_into, weights_by_hand
from phalanx.adopt.loops import TrainingLoop, find_backwards, find_loop
from phalanx.adopt.loss_form import LossForm
from phalanx.adopt.obstacles import obstacles
from phalanx.adopt.parts import SetupCall, find_setups
from phalanx.adopt.placement import place_session
from phalanx.adopt.script import ScriptSource
from phalanx.adopt.setup import write_setups
from phalanx.adopt.update import accumulation, touched_gradients
from phalanx.errors import SpecError

_BY_NAME = {
    "framework-loop",
    "lbfgs",
    "multiprocessing",
    "optimizer-per-layer",
    "reinforcement-learning",
}
_CONSEQUENCES = {
    "full-batch",
    "no-loop",
    "no-optimizer",
    "random-batches",
    "reads-rank",
    "unknown-source",
    "untraceable",
}
"""What a script looks like because it is one of those: not worth a second sentence."""


def adopt_file(path: Path) -> Adoption:
    """Analyse a script.

    Raises:
        SpecError: There is no such file, or it is not a Python 3 script.
    """
    if path.suffix == ".ipynb":
        raise SpecError(
            f"{path} is a notebook; `jupyter nbconvert --to script {path}` makes a script of it"
        )
    try:
        source = path.read_bytes().decode()
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not a text in UTF-8") from None
    return adopt(source, str(path))


def adopt(source: str, path: str = "script.py") -> Adoption:
    """Analyse the text of a script."""
    adoption = Adoption(path, source)
    script = ScriptSource(source, path)
    if _has_session(script):
        adoption.rewritten = source
        adoption.findings = [
            ScriptFinding(
                0, FindingSeverity.NOTE, "adopted", "the script has a session", "nothing to do"
            )
        ]
        return adoption
    name = "session" if "session" not in script.bindings else "phalanx_session"
    found = obstacles(script)
    plain, stripped = strip_launchers(script, name)
    found += stripped
    if find_backwards(script):
        rewritten, more = _rewrite(script if plain == source else ScriptSource(plain, path), name)
        back = _line_map(plain, source)
        known = any(one.name in _BY_NAME for one in found)
        found += [
            replace(one, line=back(one.line))
            for one in more
            if not (known and one.name in _CONSEQUENCES)
        ]
        if not any(one.severity is FindingSeverity.REFUSED for one in found):
            adoption.rewritten = rewritten
    adoption.findings = _ordered(found, refused=adoption.rewritten is None)
    return adoption


def _ordered(found: list[ScriptFinding], *, refused: bool) -> list[ScriptFinding]:
    """Order by line; where nothing is rewritten, leave out what would have been changed."""
    kept = [one for one in found if not (refused and one.severity is FindingSeverity.CHANGED)]
    unique = {(one.line, one.name): one for one in reversed(kept)}
    return sorted(unique.values(), key=lambda one: (one.line, one.name))


def _has_session(script: ScriptSource) -> bool:
    return any(script.qualified(call) == "phalanx.session" for call in script.calls)


def _rewrite(script: ScriptSource, session: str) -> tuple[str | None, list[ScriptFinding]]:
    findings: list[ScriptFinding] = []
    edits = Edits(script)
    loop: TrainingLoop | None = None
    try:
        loop = find_loop(script)
        setups = find_setups(script, loop)
        findings += look_into(script, loop, setups)
        text = _write(script, loop, setups, edits, session, findings)
    except Doubt as doubt:
        findings += [
            one
            for call in find_backwards(script)
            for inner in script.loops(call)
            for one in hidden_state(script, inner)
        ]
        if loop is not None and doubt.finding.name == "no-optimizer":
            by_hand = list(weights_by_hand(script, loop))
            return None, [*findings, *(by_hand or [doubt.finding])]
        return None, [*findings, doubt.finding]
    try:
        ast.parse(text)
    except SyntaxError as error:
        findings.append(
            refuse(
                0,
                "not-written",
                f"the rewritten script would not parse ({error.msg})",
                "adopt writes no broken code",
                "the five lines by hand: docs/how-to-adopt.md",
            )
        )
        return None, findings
    return text, findings


def _write(
    script: ScriptSource,
    loop: TrainingLoop,
    setups: list[SetupCall],
    edits: Edits,
    session: str,
    findings: list[ScriptFinding],
) -> str:
    every = accumulation(script, loop)
    form = LossForm(script, loop).form()
    uses: list[cst.CSTNode] = []
    touched = touched_gradients(script, loop)
    findings += [touched] if touched is not None else []
    if len(setups) > 1:
        findings.append(_two_optimizers(script, setups))
    findings += write_setups(script, loop, setups, edits, session, every=every, form=form)
    uses += [setup.after for setup in setups]
    fed = feed_loader(script, loop, edits, session)
    findings.append(changed_finding(script, loop, fed))
    uses.append(fed)
    if loop.epochs is not None:
        findings.append(count_epochs(script, loop.epochs, edits, session))
        uses.append(loop.epochs)
    guarded, where = guard_effects(script, loop, edits, session)
    findings += guarded
    uses += where
    uses += [
        n
        for n in script.find(script.module, cst.Name)
        if n.value == session and isinstance(script.parent(n), cst.Attribute)
    ]
    place_session(script, edits, session, uses)
    return edits.apply()


def _two_optimizers(script: ScriptSource, setups: list[SetupCall]) -> ScriptFinding:
    return ScriptFinding(
        script.line(setups[1].after),
        FindingSeverity.NOTE,
        "two-optimizers",
        f"{len(setups)} optimisers",
        "each step() exchanges the gradients of its network, in the script's order",
    )


def _line_map(new: str, old: str) -> Callable[[int], int]:
    """Return a function from lines of the stripped text to lines of the script."""
    if new == old:
        return lambda line: line
    table: dict[int, int] = {}
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    for _, a, b, c, d in matcher.get_opcodes():
        for offset in range(d - c):
            table[c + offset + 1] = min(a + offset, max(b - 1, a)) + 1
    return lambda line: table.get(line, line)
