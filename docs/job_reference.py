"""The page docs/ref-job.md, written from the models so that it cannot disagree with them.

`docs/generate_ref_job.py` writes the page; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic.fields import FieldInfo

from phalanx.spec import shape
from phalanx.spec.base import Spec
from phalanx.spec.compression import COMPRESSIONS, CompressionSpec
from phalanx.spec.flow import flow
from phalanx.spec.job import JobSpec

EXAMPLE = """\
name: first-job
model: mnist-cnn                # or {name: resnet, n: 8}, or my_package.nets:build
data: mnist                     # or {name: cifar10, augment: [flip, pad-crop], shard: sample}
batch: {global: 128}            # or {per_worker: 64}
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: {name: milestones, at: [0.5, 0.75], factor: 0.1}
epochs: 3
workers: 2
strategy: allreduce             # or {name: allreduce, compression: bf16}
seed: 1
"""

EXAMPLE_LONG = """\
name: first-job
model:
  name: resnet
  n: 8
data:
  name: cifar10
  augment: [flip, pad-crop]
  shard: sample
batch:
  per_worker: 64
optimizer:
  name: sgd
  lr: 0.05
  momentum: 0.9
schedule:
  name: milestones
  at: [0.5, 0.75]
  factor: 0.1
epochs: 3
workers: 2
strategy:
  name: allreduce
  compression: bf16
seed: 1
"""

_HEAD = f"""\
<!-- Written by docs/generate_ref_job.py from the models in src/phalanx/spec; edit those. -->

# The job file

A job file is YAML 1.2 and describes one training run. Every key has a default, so a job file holds
only what differs from it; `phalanx train job.yaml --dry-run` shows the job with all defaults.

```yaml
{EXAMPLE}```

Where a part is chosen by name, the bare name stands for the part with its defaults: writing
`strategy: allreduce` is short for `strategy: {{name: allreduce}}`. The same job with other choices,
in the long form:

```yaml
{EXAMPLE_LONG}```

## Changing a job from the command line

`--set path=value` wins over the file and may be given several times; the value is read as YAML.

| Example | Effect |
|---|---|
| `--set optimizer.lr=0.1` | changes one setting; `optimizer: sgd` counts as `{{name: sgd}}` |
| `--set strategy=local_sgd` | replaces the whole part; its other settings are the defaults |
| `--set optimizer.name=adam` | changes the kind; settings that `adam` also has stay, others go |
| `--set batch.per_worker=64` | replaces `batch.global`, as only one of the two may be given |
| `--set batch.shares.0=2` | changes the first entry of a list |
| `--set early_stop.patience=5` | gives a part that the file leaves out, starting from its default |

## When something is wrong

The command ends with exit code 2 and one sentence that gives file and line, the value, and what
would be right; nothing has been started by then.

```
job.yaml:5: unknown key 'momentun' in optimizer; did you mean 'momentum'? (valid: clip_norm, ema,
l2, lr, momentum, name, nesterov, weight_decay)
```

Numbers are written without quotes; `64` is a number, `"64"` is text and is refused. `true` and
`false` are the only booleans; `off` and `yes` are text.

## The job
"""


_COMPRESSION = "compression"


def reference_page() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD, *settings_table(JobSpec)]
    for key, field in shape.keys(JobSpec).items():
        specs = _parts(field)
        if specs:
            parts += _section(key, field, specs)
        if key == "strategy":
            parts += _compressions()
    return "\n".join(parts).rstrip() + "\n"


def _section(key: str, field: FieldInfo, specs: Sequence[type[Spec]]) -> Iterator[str]:
    yield f"\n## {key}\n"
    if len(specs) > 1:
        yield _text(field.description or "")
    for spec in specs:
        if len(specs) > 1:
            names = shape.names_of(spec)
            title = f"`{names[0]}`" if names else f"`{_wording(shape.keys(spec)['name'])}`"
            yield f"\n### {title}\n"
        yield f"{_text(spec.__doc__ or '')}\n"
        yield from settings_table(spec)
        for inner_key, inner in shape.keys(spec).items():
            for part in _parts(inner):
                if _section_of(part) is None:
                    yield f"\n`{key}.{inner_key}`: {_text(part.__doc__ or '')}\n"
                    yield from settings_table(part)


def _compressions() -> Iterator[str]:
    """The kinds of `strategy.compression`, which several strategies share."""
    yield f"\n## {_COMPRESSION}\n"
    yield (
        "`strategy.compression` of `allreduce`, `local_sgd` and `parameter_server`: how gradients, "
        "or changes of parameters, are shortened on their way. What is left out is kept by its "
        "worker, in checkpoints too, and added to the next one."
    )
    kinds = [COMPRESSIONS.find(name) for name in COMPRESSIONS.built_in]
    yield "\n| Name | Effect | Parameter servers |"
    yield "|---|---|---|"
    for kind in kinds:
        yield f"| `{kind.name}` | {kind.effect} | {'yes' if kind.pushed_bytes else 'no'} |"
    for kind in kinds:
        yield f"\n### `{_COMPRESSION}: {kind.name}`\n"
        yield f"{_text(kind.spec.__doc__ or '')}\n"
        yield from settings_table(kind.spec)


def _parts(field: FieldInfo) -> list[type[Spec]]:
    """The specs behind a setting, or behind each entry of a list."""
    annotation = shape.annotation_of(field)
    return shape.spec_classes(annotation) or shape.spec_classes(shape.item_annotation(annotation))


def _section_of(part: type[Spec]) -> str | None:
    """The section that tells of a spec; None: none of its own."""
    for key, field in shape.keys(JobSpec).items():
        if part in _parts(field):
            return key
    return _COMPRESSION if issubclass(part, CompressionSpec) else None


def settings_table(spec: type[Spec]) -> Iterator[str]:
    """The settings of a spec as lines of a Markdown table."""
    rows = [(key, field) for key, field in shape.keys(spec).items() if not _is_fixed(spec, key)]
    if not rows:
        yield "It has no settings."
        return
    yield "| Key | Value | Default | Meaning |"
    yield "|---|---|---|---|"
    for key, field in rows:
        cells = (f"`{key}`", _value(key, field), _default(field), _text(field.description or ""))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _is_fixed(spec: type[Spec], key: str) -> bool:
    return key == "name" and len(shape.names_of(spec)) == 1


def _value(key: str, field: FieldInfo) -> str:
    specs = _parts(field)
    if not specs:
        return _wording(field)
    names = [f"`{name}`" for spec in specs for name in shape.names_of(spec)]
    null = " or null" if any(core is type(None) for core, _ in _alternatives(field)) else ""
    section = _section_of(specs[0])
    if shape.spec_classes(shape.annotation_of(field)):
        where = f"see [{section}](#{section})" if section else "a mapping, see below"
    else:
        where = f"a list, see [{section}](#{section})" if section else "a list, see below"
    return (f"{', '.join(names)}: {where}" if names else where) + null


def _alternatives(field: FieldInfo) -> list[tuple[shape.Annotation, tuple[object, ...]]]:
    return shape.alternatives(shape.annotation_of(field))


def _wording(field: FieldInfo) -> str:
    return shape.wording(shape.annotation_of(field))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "none: must be given"
    default = field.default
    if not isinstance(default, Spec):
        return f"`{flow(default)}`"
    name = getattr(default, "name", None)
    given = default.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if name is not None:
        return f"`{flow(name)}`"
    return f"`{flow(given)}`" if given else "all defaults"


def _text(docstring: str) -> str:
    return " ".join(docstring.split())
