"""Every way in which a job file can be wrong, each with its exact sentence and line."""

import pickle
from pathlib import Path

import pytest

from phalanx.errors import ExitCode, SpecError
from phalanx.spec.loader import job_from_mapping, load_job

MODELS = "(built in: mlp, cnn, mnist-cnn, resnet, densenet; or package.module:function)"
STRATEGIES = (
    "(valid: single, allreduce, local_sgd, parameter_server, switch, split, mirrored, "
    "central_storage)"
)
SGD_KEYS = "(valid: clip_norm, ema, l2, lr, momentum, name, nesterov, weight_decay)"
JOB_KEYS = (
    "(valid: backend, batch, checkpoint, code, data, deadlines, early_stop, elastic, epochs, "
    "evaluate, infer, inject, loss, metrics, model, name, observe, optimizer, pin, precision, "
    "profile, program, python_path, schedule, seed, strategy, threads, trust_network, workers)"
)
NAME = "up to 80 of a-z, A-Z, 0-9, '_', '.' and '-', not starting with '.' or '-'"
DATA = (
    "(built in: digits, mnist, fashion-mnist, kmnist, cifar10; "
    "or a path that contains '/' or ends in .npz, .parquet, .csv, .tsv, .txt, or "
    "package.module:name)"
)

UNKNOWN_KEYS = [
    ("epoch: 3", 2, f"unknown key 'epoch'; did you mean 'epochs'? {JOB_KEYS}"),
    ("lr: 0.1", 2, f"unknown key 'lr'; did you mean 'optimizer.lr'? {JOB_KEYS}"),
    ("learning_rate: 1", 2,
     f"unknown key 'learning_rate'; did you mean 'optimizer.lr'? {JOB_KEYS}"),
    ("zzz: 1", 2, f"unknown key 'zzz' {JOB_KEYS}"),
    (
        "optimizer:\n  name: sgd\n  lr: 0.1\n  momentun: 0.9",
        5,
        f"unknown key 'momentun' in optimizer; did you mean 'momentum'? {SGD_KEYS}",
    ),
    (
        "optimizer: {name: sgd,\n  sgd: 3}",
        3,
        f"unknown key 'sgd' in optimizer {SGD_KEYS}",
    ),
    (
        "optimizer: {name: adam, momentum: 0.9}",
        2,
        "unknown key 'momentum' in optimizer; it belongs to 'sgd' "
        "(valid: betas, clip_norm, ema, eps, l2, lr, name, weight_decay)",
    ),
    (
        "optimizer: {name: sgd, eps: 1}",
        2,
        "unknown key 'eps' in optimizer; it belongs to 'adagrad', 'adadelta', 'adam' and 'adamw' "
        f"{SGD_KEYS}",
    ),
    (
        "batch: {global_: 128}",
        2,
        "unknown key 'global_' in batch; did you mean 'global'? "
        "(valid: accumulate, global, per_worker, shares)",
    ),
    (
        "strategy:\n  name: local_sgd\n  outer:\n    lrr: 1",
        5,
        "unknown key 'lrr' in strategy.outer; did you mean 'lr'? (valid: lr, momentum)",
    ),
    ("model: {name: pkg.nets:build, n: 3}", 2, "unknown key 'n' in model; it belongs to 'resnet' "
     "(valid: args, name)"),
]  # fmt: skip

UNKNOWN_NAMES = [
    ("model: mnist-cn", 2, f"unknown model 'mnist-cn'; did you mean 'mnist-cnn'? {MODELS}"),
    ("model: {name: resnt, n: 8}", 2, f"unknown model 'resnt'; did you mean 'resnet'? {MODELS}"),
    ("model:\n  n: 8\n  name: resnt", 4, f"unknown model 'resnt'; did you mean 'resnet'? {MODELS}"),
    ("model: my_package.nets", 2, f"unknown model 'my_package.nets' {MODELS}"),
    ("model: '1a:build'", 2, f"unknown model '1a:build' {MODELS}"),
    (
        "strategy: allreduc",
        2,
        f"unknown strategy 'allreduc'; did you mean 'allreduce'? {STRATEGIES}",
    ),
    (
        "optimizer: SGD",
        2,
        "unknown optimizer 'SGD'; did you mean 'sgd'? (valid: sgd, adagrad, adadelta, adam, adamw)",
    ),
    (
        "loss: crossentropy",
        2,
        "unknown loss 'crossentropy'; did you mean 'cross-entropy'? "
        "(built in: cross-entropy, mse, l1, huber, bce, model; or package.module:function)",
    ),
    ("data: mnst", 2, f"unknown data 'mnst'; did you mean 'mnist'? {DATA}"),
    ("data:\n  shard: off\n  name: pictures", 4, f"unknown data 'pictures' {DATA}"),
    ("model: {n: 8}", 2, f"model has no name; add one, such as 'name: mlp' {MODELS}"),
    (
        "data: {shard: off}",
        2,
        "data has no name; add one (a built-in data set, a path, a URL or package.module:name)",
    ),
    (
        "strategy: {}",
        2,
        f"strategy has no name; add one, such as 'name: single' {STRATEGIES}",
    ),
    (
        "strategy: {name: [single]}",
        2,
        f"strategy.name must be text, not [single] {STRATEGIES}",
    ),
]

WRONG_TYPES = [
    ("epochs: three", "epochs must be a whole number above 0, not 'three'"),
    ('epochs: "64"', "epochs must be a whole number above 0, not '64'; remove the quotes"),
    ("epochs: true", "epochs must be a whole number above 0, not true"),
    ("epochs: 3.0", "epochs must be a whole number above 0, not 3.0; write 3"),
    ("epochs: 2.5", "epochs must be a whole number above 0, not 2.5"),
    ("epochs: [3]", "epochs must be a whole number above 0, not [3]"),
    ("epochs: {a: 3}", "epochs must be a whole number above 0, not {a: 3}"),
    ("epochs:",
     "epochs must be a whole number above 0, not null; leave the key out for the default"),
    ("pin: yes", "pin must be true or false, not 'yes'; write true"),
    ("pin: off", "pin must be true or false, not 'off'; write false"),
    ("pin: 1", "pin must be true or false, not 1"),
    ("threads: x", "threads must be a whole number above 0 or 'auto', not 'x'"),
    ("threads: atuo", "threads must be a whole number above 0 or 'auto', not 'atuo'; "
     "did you mean 'auto'?"),
    ("threads: true", "threads must be a whole number above 0 or 'auto', not true"),
    ("optimizer: {name: sgd, lr: fast}", "optimizer.lr must be a number above 0, not 'fast'"),
    ("optimizer: {name: sgd, lr: '1e-3'}",
     "optimizer.lr must be a number above 0, not '1e-3'; remove the quotes"),
    ("optimizer: {name: sgd, lr: true}", "optimizer.lr must be a number above 0, not true"),
    ("optimizer: {name: sgd, lr: .inf}", "optimizer.lr must be a number above 0, not .inf"),
    ("data: {name: mnist, input_key: 5}", "data.input_key must be text, not 5; put it in quotes"),
    ("data: {name: mnist, augment: flip}",
     "data.augment must be a list, each entry 'flip', 'pad-crop' or package.module:function, "
     "not 'flip'; write [flip]"),
    ("data: {name: mnist, augment: {flip: 1}}",
     "data.augment must be a list, each entry 'flip', 'pad-crop' or package.module:function, "
     "not {flip: 1}"),
    ("model: {name: a:b, args: 3}", "model.args must be a mapping, not 3"),
    ("model: {name: a:b, args: {x: [.nan]}}",
     "model.args may hold numbers, text, true, false, null, lists and mappings, not .nan"),
    ("model: {name: resnet, version: true}", "model.version must be 1 or 2, not true"),
    ("model: {name: resnet, version: 1.0}", "model.version must be 1 or 2, not 1.0"),
    ("batch: 128",
     "batch must be a mapping with global, per_worker, shares or accumulate, not 128"),
    ("optimizer: 3",
     "optimizer must be a name such as sgd, or a mapping such as {name: sgd}, not 3"),
    ("model: [mlp]",
     "model must be a name such as mlp, or a mapping such as {name: mlp}, not [mlp]"),
    ("early_stop: true",
     "early_stop must be a mapping with monitor, patience, min_delta or bar, or null, not true"),
    ("name: 5", f"name must be {NAME}, not 5; put it in quotes"),
]  # fmt: skip

OUT_OF_RANGE = [
    ("epochs: 0", "epochs must be a whole number above 0, not 0"),
    ("workers: 5000", "workers must be a whole number from 1 to 4096, not 5000"),
    ("seed: -1", "seed must be a whole number from 0 to 4294967295, not -1"),
    ("batch: {global: -3}", "batch.global must be a whole number above 0 or null, not -3"),
    ("data: {name: mnist, validation: 1.5}",
     "data.validation must be a number of at least 0 and below 1, 'auto' or 'test', not 1.5"),
    ("data: {name: mnist, prefetch: -1}",
     "data.prefetch must be a whole number of at least 0, not -1"),
    ("model: {name: densenet, reduction: 2}",
     "model.reduction must be a number above 0 and up to 1, not 2"),
    ("model: {name: densenet, depth: 41}",
     "model.depth must be 6k + 4 for densenet, not 41; the nearest is 40"),
    ("deadlines: {stop_s: 0}", "deadlines.stop_s must be a number above 0, not 0"),
    ("name: my job", f"name must be {NAME}, not 'my job'"),
    ("name: ..", f"name must be {NAME}, not '..'"),
    ("evaluate: epocs",
     "evaluate must be 'epoch', 'end' or 'never', not 'epocs'; did you mean 'epoch'?"),
    ("checkpoint: {best: loss}",
     "'loss' is no figure of validation, such as val_loss or val_accuracy"),
    ("data: {name: mnist, shard: of}",
     "data.shard must be 'auto', 'sample', 'file' or 'off', not 'of'; did you mean 'off'?"),
]  # fmt: skip

COMBINATIONS = [
    ("batch: {}", 2, "batch takes exactly one of global and per_worker, such as {global: 128}"),
    ("batch:\n  global: 128\n  per_worker: 64", 4,
     "batch takes exactly one of global and per_worker, such as {global: 128}"),
    ("batch:\n  per_worker: 64\n  shares: [1]", 4,
     "batch.shares divides a global batch; give 'global' instead of 'per_worker'"),
    ("workers: 2\nbatch:\n  global: 64\n  shares: [1, 1, 1]", 5,
     "batch.shares takes one entry per worker (2), not 3"),
    ("strategy: single\nworkers: 2", 3,
     "strategy 'single' takes 1 worker, not 2; set 'workers: 1' or a strategy such as allreduce"),
    ("early_stop: {}\nevaluate: never", 3, "early_stop needs evaluation; set 'evaluate: epoch'"),
    ("optimizer:\n  name: sgd\n  nesterov: true", 4,
     "optimizer.nesterov needs a momentum above 0, such as 0.9"),
    ("optimizer:\n  name: adam\n  betas: [0.9]", 4,
     "optimizer.betas takes two numbers, not 1; such as [0.9, 0.999]"),
    ("schedule: milestones", 2, "schedule 'milestones' takes exactly one of at and at_epochs, "
     "such as {at: [0.5, 0.75]} or {at_epochs: [80, 130]}"),
    ("schedule:\n  name: milestones\n  at: [0.7, 0.5]", 4, "schedule.at must rise, not [0.7, 0.5]"),
]  # fmt: skip


def message_for(directory: Path, text: str) -> str:
    """The sentence, without the directory, for a job whose own text starts on line 2."""
    file = directory / "job.yaml"
    file.write_text(f"# a job\n{text}\n", encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_job(file)
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    return str(caught.value).removeprefix(f"{directory}/")


@pytest.mark.parametrize(("text", "line", "message"), UNKNOWN_KEYS)
def test_unknown_key(tmp_path: Path, text: str, line: int, message: str) -> None:
    assert message_for(tmp_path, text) == f"job.yaml:{line}: {message}"


@pytest.mark.parametrize(("text", "line", "message"), UNKNOWN_NAMES)
def test_unknown_name(tmp_path: Path, text: str, line: int, message: str) -> None:
    assert message_for(tmp_path, text) == f"job.yaml:{line}: {message}"


@pytest.mark.parametrize(("text", "message"), WRONG_TYPES)
def test_wrong_type(tmp_path: Path, text: str, message: str) -> None:
    assert message_for(tmp_path, text) == f"job.yaml:2: {message}"


@pytest.mark.parametrize(("text", "message"), OUT_OF_RANGE)
def test_out_of_range(tmp_path: Path, text: str, message: str) -> None:
    assert message_for(tmp_path, text) == f"job.yaml:2: {message}"


@pytest.mark.parametrize(("text", "line", "message"), COMBINATIONS)
def test_settings_that_do_not_go_together(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    assert message_for(tmp_path, text) == f"job.yaml:{line}: {message}"


def test_list_entry_has_its_own_line(tmp_path: Path) -> None:
    text = "data:\n  name: mnist\n  augment:\n    - flip\n    - pad-crp"
    assert message_for(tmp_path, text) == (
        "job.yaml:6: data.augment.1 must be 'flip', 'pad-crop' or package.module:function, "
        "not 'pad-crp'; did you mean 'pad-crop'?"
    )


def test_several_problems_are_one_sentence_in_file_order(tmp_path: Path) -> None:
    text = "zzz: 1\nworkers: 0\nmodel: {name: resnt, n: 8}\nepochs: x\nseed: x"
    assert message_for(tmp_path, text) == (
        f"job.yaml:2: unknown key 'zzz' {JOB_KEYS} (and 4 more: line 3: workers must be a whole "
        "number from 1 to 4096, not 0; line 4: unknown model 'resnt'; line 5: epochs must be a "
        "whole number above 0, not 'x'; ...)"
    )


def test_long_value_is_cut(tmp_path: Path) -> None:
    message = message_for(tmp_path, f"epochs: {'x' * 500}")
    assert message == f"job.yaml:2: epochs must be a whole number above 0, not '{'x' * 56}..."


def test_facts_survive_pickling(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("epochs: 1\noptimizer: {name: sgd, lr: 0}\n")
    with pytest.raises(SpecError) as caught:
        load_job(file)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.facts == {"file": str(file), "line": 2, "setting": "optimizer.lr"}


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"epochs": "x"}, "epochs must be a whole number above 0, not 'x'"),
        (
            {"epochs": "x", "zzz": 1},
            "epochs must be a whole number above 0, not 'x' (and 1 more: unknown key 'zzz')",
        ),
        ({"epochs": object()}, "epochs must be a whole number above 0, not a Python object"),
        ({"model": {"name": "a:b", "args": {"x": {1}}}},
         "model.args may hold numbers, text, true, false, null, lists and mappings, "
         "not a Python set"),
        ({1: 2}, "a key must be text, not 1"),
        ({"batch": {None: 2}}, "a key must be text, not null"),
    ],
)  # fmt: skip
def test_mapping_has_the_same_messages_without_a_line(
    mapping: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        job_from_mapping(mapping)
    assert str(caught.value) == message
