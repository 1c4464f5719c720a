"""What is rendered reads back as the same job, for any job."""

import contextlib
import json
import string
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_reference import EXAMPLE
from ruamel.yaml import YAML

from phalanx.errors import SpecError
from phalanx.spec import shape
from phalanx.spec.base import Spec, Words
from phalanx.spec.data import SOURCES
from phalanx.spec.document import parse
from phalanx.spec.flow import flow
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping, load_job
from phalanx.spec.render import to_mapping, to_yaml

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
identifiers = st.text(string.ascii_letters + "_", min_size=1, max_size=8)
user_names = st.builds("{}.{}:{}".format, identifiers, identifiers, identifiers)
data_names = st.sampled_from(SOURCES.built_in) | st.text(max_size=20).map("./{}".format)
job_names = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}\Z")


def numbers(whole: bool, constraints: tuple[object, ...]) -> st.SearchStrategy[object]:
    bounds = {
        name: getattr(constraint, name)
        for constraint in constraints
        for name in ("gt", "ge", "lt", "le")
        if hasattr(constraint, name)
    }
    low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
    if whole:
        low += "gt" in bounds
        return st.integers(low, high if high is None else high - ("lt" in bounds))
    limits = {"exclude_min": "gt" in bounds, "exclude_max": "lt" in bounds}
    return st.floats(low, high, allow_nan=False, allow_infinity=False, **limits)


def values(annotation: object) -> st.SearchStrategy[object]:
    """Anything that the models' types allow, as it would stand in a file."""
    specs = shape.spec_classes(annotation)
    choices = [settings_of(spec) for spec in specs]
    for core, constraints in shape.alternatives(annotation):
        if core in specs:
            continue
        if get_origin(core) is Literal:
            choices.append(st.sampled_from(get_args(core)))
        elif get_origin(core) is tuple:
            choices.append(st.lists(values(get_args(core)[0]), max_size=4))
        elif get_origin(core) is dict:
            choices.append(st.dictionaries(st.text(), json_values, max_size=3))
        elif any(isinstance(one, Words) and "module:" in one.text for one in constraints):
            choices.append(user_names)
        elif any(isinstance(one, Words) and "file or folder" in one.text for one in constraints):
            choices.append(st.lists(identifiers, min_size=1, max_size=3).map("/".join))
        elif core in (int, float):
            choices.append(numbers(core is int, constraints))
        else:
            choices.append({bool: st.booleans(), str: st.text(), type(None): st.none()}[core])
    return st.one_of(choices)


def settings_of(spec: type[Spec]) -> st.SearchStrategy[dict[str, object]]:
    fields = {key: values(shape.annotation_of(field)) for key, field in shape.keys(spec).items()}
    special = {"DataSpec": data_names, "UserModelSpec": user_names, "JobSpec": job_names}
    if spec.__name__ in special:
        fields["name"] = special[spec.__name__]
    needed = [
        key for key, field in shape.keys(spec).items() if key == "name" or field.is_required()
    ]
    required = {key: fields.pop(key) for key in needed}
    return st.fixed_dictionaries(required, optional=fields)


def made_consistent(mapping: dict[str, object]) -> dict[str, object]:
    """Repair what the types alone cannot promise."""
    workers = mapping.get("workers", 1)
    batch = mapping.get("batch")
    if isinstance(batch, dict):
        batch.pop("per_worker" if batch.get("global") else "global", None)
        if not batch.get("per_worker"):
            batch.setdefault("global", 64)
        if batch.get("shares") is not None and (
            not batch.get("global") or len(batch["shares"]) != workers
        ):
            del batch["shares"]
    optimizer = mapping.get("optimizer", {})
    if optimizer.get("nesterov"):
        optimizer["momentum"] = 0.9
    if len(optimizer.get("betas", "ab")) != 2:
        del optimizer["betas"]
    schedule = mapping.get("schedule", {})
    if schedule.get("name") == "milestones":
        schedule["at"] = sorted(set(schedule.get("at", ()))) or [0.5]
        schedule.pop("at_epochs", None)
    model = mapping.get("model", {})
    if model.get("name") == "densenet":
        model.pop("depth", None)
    # A script stands alone, and has a test of its own.
    mapping.pop("program", None)
    # What other backends refuse is theirs to test; here every setting is to be seen.
    mapping.pop("backend", None)
    if mapping.get("strategy", {}).get("name") in ("mirrored", "central_storage"):
        mapping["strategy"] = {"name": "allreduce"}
    make_elastic_consistent(mapping)
    make_data_consistent(mapping)
    if mapping.get("strategy", {}).get("name") == "single":
        mapping["workers"] = 1
        mapping.pop("batch", None)
    if mapping.get("evaluate") in ("never", "end"):
        mapping.pop("early_stop", None)
    early = mapping.get("early_stop")
    if isinstance(early, dict) and early.get("bar") is None:
        early.pop("patience", None)
    loss = mapping.get("loss")
    if isinstance(loss, dict):
        for key, homes in {
            "label_smoothing": ("cross-entropy",),
            "ignore": ("cross-entropy", "model"),
            "delta": ("huber",),
            "shift": ("model",),
        }.items():
            if loss.get("name") not in homes:
                loss.pop(key, None)
        if ":" not in loss["name"]:
            loss.pop("args", None)
    for section, key in ((early, "monitor"), (mapping.get("checkpoint"), "best")):
        # Any text is drawn, but few name a figure.
        if isinstance(section, dict) and section.get(key) is not None:
            section[key] = "val_loss"
    labels = [one["name"].rpartition(":")[2] for one in mapping.get("metrics", ())]
    if len(set(labels)) < len(labels):
        mapping.pop("metrics")
    for one in mapping.get("inject", ()):
        one |= {"rank": 0, "begin": 0.25, "end": 0.5}
    if isinstance(mapping.get("profile"), dict):
        mapping["profile"]["epochs"] = "1"
    observe = mapping.get("observe", {})
    if observe.get("watts_idle") is None or observe.get("watts_full") is None:
        observe.pop("watts_idle", None)
        observe.pop("watts_full", None)
        if observe.get("energy") == "model":
            observe["energy"] = "off"
    else:
        observe["watts_full"] = observe["watts_idle"] + 1
    # Momentum of top-k replaces that of an optimiser, and few have none.
    mapping.get("strategy", {}).get("compression", {}).pop("momentum", None)
    if mapping.get("strategy", {}).get("name") == "parameter_server":
        make_serving_consistent(mapping, mapping["strategy"])
    if mapping.get("strategy", {}).get("name") == "switch":
        make_switch_consistent(mapping)
    if mapping.get("strategy", {}).get("name") == "split":
        make_split_consistent(mapping, mapping["strategy"])
    served = mapping.get("strategy", {}).get("name") in ("parameter_server", "switch")
    if served or mapping.get("backend", "native") != "native":
        mapping.pop("infer", None)
    return mapping


def make_split_consistent(mapping: dict[str, object], strategy: dict[str, object]) -> None:
    """Parts on workers that there are; nothing that cuts batches or measures precisions."""
    if isinstance(strategy.get("placement"), dict):
        strategy["placement"] = dict.fromkeys(strategy["placement"], 0)
    strategy["replicate"] = {part: [0] for part in strategy.get("replicate", {})}
    for key in ("memory", "speeds"):
        strategy.pop(key, None)
    for key in ("shares", "accumulate"):
        mapping.get("batch", {}).pop(key, None)
    mapping.pop("metrics", None)
    mapping.get("optimizer", {}).pop("ema", None)
    mapping.get("data", {}).pop("shard", None)
    mapping.pop("precision", None)


def make_elastic_consistent(mapping: dict[str, object]) -> None:
    """Only plain all-reduce can lose a worker and go on."""
    elastic = mapping.get("elastic")
    if isinstance(elastic, dict) and mapping.get("strategy", {}).get("name") == "allreduce":
        elastic["min"] = min(elastic.get("min", 1), mapping.get("workers", 1))
        mapping["strategy"] = {"name": "allreduce"}
        mapping["data"] = {"name": "digits"}
        mapping.pop("precision", None)
        mapping.pop("profile", None)
    else:
        mapping.pop("elastic", None)


def make_data_consistent(mapping: dict[str, object]) -> None:
    """A generator only with its own settings, a distribution only where it may stand."""
    data = mapping.get("data", {})
    data.pop("args", None)
    data.pop("modalities", None)
    distribution = data.get("distribution")
    if isinstance(distribution, dict):
        kept = {"name": "iid"} | {
            key: distribution[key] for key in ("at_end", "seed") if key in distribution
        }
        data["distribution"] = kept
        data.pop("shard", None)
        if mapping.get("strategy", {}).get("name", "allreduce") not in ("allreduce", "local_sgd"):
            del data["distribution"]
        if mapping.get("backend", "native") != "native":
            data.pop("distribution", None)


def make_switch_consistent(mapping: dict[str, object]) -> None:
    """Phases at rising shares; what else was drawn stays."""
    switch = mapping["strategy"]
    phases = switch.pop("phases", [])
    if len(phases) > 1:
        switch["phases"] = phases
    for number, one in enumerate([switch, *phases]):
        for key in ("at", "epoch", "lr_drop"):
            one.pop(key, None)
        if number > 1:
            one["at"] = (number - 1) / len(phases)
    straggler = switch.get("straggler") or {}
    inner = [phase["strategy"] for phase in phases]
    for strategy in [*inner, *([straggler["loosen_to"]] if "loosen_to" in straggler else [])]:
        if strategy["name"] == "single":
            strategy["name"] = "allreduce"
        strategy.get("compression", {}).pop("momentum", None)
        if strategy["name"] == "parameter_server":
            make_serving_consistent(mapping, strategy)
    if switch.get("handover") == "restart":
        switch["momentum"], switch["straggler"] = "keep", None
    mapping.get("optimizer", {}).pop("clip_norm", None)
    mapping.get("data", {}).pop("shard", None)


def make_serving_consistent(mapping: dict[str, object], strategy: dict[str, object]) -> None:
    consistency = strategy.get("consistency", "async")
    homes = {
        "staleness": "ssp",
        "staleness_range": "dssp",
        "backup": "bsp",
        "overlap": "async",
        "lr_scaling": "async",
    }
    for field, home in homes.items():
        if consistency != home:
            strategy.pop(field, None)
    strategy.pop("k", None)
    if consistency.startswith("k_"):
        strategy["k"] = 1
    if strategy.get("backup"):
        strategy["backup"] = 0
    if "staleness_range" in strategy:
        strategy["staleness_range"] = [2, 5]
    strategy.pop("delay_compensation", None)
    strategy.pop("delay_lambda", None)
    if strategy.get("compression", {}).get("name", "none") not in ("none", "bf16", "int8"):
        del strategy["compression"]
    mapping.get("optimizer", {}).pop("clip_norm", None)
    if "shard" in mapping.get("data", {}):
        mapping["data"]["shard"] = "sample"


jobs = settings_of(JobSpec).map(made_consistent).map(job_from_mapping)


@given(job=jobs)
def test_any_job_survives_a_round_trip_through_yaml(
    tmp_path_factory: pytest.TempPathFactory, job: JobSpec
) -> None:
    folder = tmp_path_factory.getbasetemp()
    file = folder / "round-trip.yaml"
    file.write_text(to_yaml(job), encoding="utf-8")
    # From the folder of the file: elsewhere, paths that lie beside it are made absolute.
    with contextlib.chdir(folder):
        assert load_job(file) == job


@given(job=jobs)
def test_any_job_survives_a_round_trip_through_the_manifest(job: JobSpec) -> None:
    assert job_from_mapping(json.loads(json.dumps(to_mapping(job), allow_nan=False))) == job


@given(value=json_values)
def test_any_plain_value_is_one_line_of_yaml(value: object) -> None:
    text = flow(value)
    assert "\n" not in text
    assert parse(text, "").data == value
    assert parse(f"a:\n  b: {text}  # note", "").data == {"a": {"b": value}}


@given(text=st.text(alphabet=st.sampled_from("abc:{}[],-&*!|>'\"%@`#?\\ \n\t01.e~<=\x85\u2028")))
def test_any_text_is_a_job_or_one_sentence(text: str) -> None:
    message = "job.yaml: fine"
    try:
        parse(text, "job.yaml")
    except SpecError as error:
        message = str(error)
    assert message.startswith("job.yaml:")
    assert "\n" not in message


@pytest.mark.parametrize("word", ["off", "Yes", "null", "~", "1e-3", "010", "1_000", "2024-01-31"])
def test_text_that_other_readers_take_for_something_else_is_quoted(word: str) -> None:
    assert flow(word) == f'"{word}"'
    old_reader = YAML(typ="safe", pure=True)
    old_reader.version = (1, 1)
    assert old_reader.load(flow(word)) == word


def test_small_numbers_are_numbers_for_other_readers_too() -> None:
    assert flow([1e-10, 1.5e-7, 1e16]) == "[1.0e-10, 1.5e-07, 1.0e+16]"


def test_yaml_has_all_defaults_in_the_order_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(EXAMPLE)
    lines = to_yaml(load_job(tmp_path / "job.yaml")).splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == list(
        shape.keys(JobSpec)
    )
    start = lines.index("batch:")
    assert lines[start : start + 9] == [
        "batch:",
        "  global: 128",
        "  per_worker: null",
        "  shares: null",
        "  accumulate: 1",
        "optimizer:",
        "  name: sgd",
        "  lr: 0.05",
        "  momentum: 0.9",
    ]


def test_manifest_is_plain_json_data() -> None:
    mapping = to_mapping(JobSpec())
    assert json.loads(json.dumps(mapping)) == mapping
    assert mapping["batch"] == {
        "global": 128,
        "per_worker": None,
        "shares": None,
        "accumulate": 1,
    }
