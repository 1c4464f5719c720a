"""Job files that are right, and files that are no job at all."""

from pathlib import Path

import pytest
from job_reference import EXAMPLE, EXAMPLE_LONG

from phalanx.errors import SpecError
from phalanx.spec.data import DataSpec
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping, load_job
from phalanx.spec.lockstep import AllreduceSpec
from phalanx.spec.model import MnistCnnSpec, ResnetSpec, UserModelSpec
from phalanx.spec.optimize import SgdSpec
from phalanx.spec.schedule import MilestonesSpec


def written(directory: Path, text: str | bytes) -> Path:
    file = directory / "job.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_example_job(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, EXAMPLE))
    assert job.name == "first-job"
    assert job.model == MnistCnnSpec()
    assert job.data == DataSpec(name="mnist")
    assert (job.batch.global_, job.global_batch) == (128, 128)
    assert job.optimizer == SgdSpec(lr=0.05, momentum=0.9)
    assert job.schedule == MilestonesSpec(at=(0.5, 0.75), factor=0.1)
    assert (job.epochs, job.workers, job.seed) == (3, 2, 1)
    assert job.strategy == AllreduceSpec()


def test_example_job_in_long_form(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, EXAMPLE_LONG))
    assert job.model == ResnetSpec(n=8)
    assert job.data == DataSpec(name="cifar10", augment=("flip", "pad-crop"), shard="sample")
    assert (job.batch.per_worker, job.global_batch) == (64, 128)
    assert job.strategy == AllreduceSpec(compression="bf16")


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("model: mlp", "model: {name: mlp}"),
        ("model: my_package.nets:build", "model: {name: my_package.nets:build, args: {}}"),
        ("data: mnist", "data: {name: mnist, shard: auto}"),
        ("optimizer: adam", "optimizer: {name: adam, betas: [0.9, 0.999]}"),
        ("schedule: cosine", "schedule:\n  name: cosine\n  floor: 0"),
        ("loss: mse", "loss: {name: mse}"),
        ("strategy: local_sgd", "strategy: {name: local_sgd, every: 8, outer: null}"),
        ("batch: {global: 128}", "{}"),
    ],
)
def test_short_form_is_the_long_form_with_defaults(tmp_path: Path, short: str, long: str) -> None:
    assert load_job(written(tmp_path, short)) == load_job(written(tmp_path, long))


def test_scalars_follow_yaml_1_2(tmp_path: Path) -> None:
    text = (
        "name: 2024-01-31\nseed: 010\n"
        "data: {name: mnist, shard: off}\noptimizer: {name: sgd, lr: 1e-3}"
    )
    job = load_job(written(tmp_path, text))
    assert (job.name, job.seed, job.data.shard, job.optimizer.lr) == ("2024-01-31", 10, "off", 1e-3)


def test_user_model_takes_plain_arguments(tmp_path: Path) -> None:
    text = "model: {name: nets:build, args: {width: 3, act: [relu, null], deep: {on: off}}}"
    model = load_job(written(tmp_path, text)).model
    assert isinstance(model, UserModelSpec)
    assert model.args == {"width": 3, "act": ["relu", None], "deep": {"on": "off"}}


@pytest.mark.parametrize("data", ["./pictures", "/data/set", "train.npz", "train.parquet"])
def test_data_path_need_not_exist_here(tmp_path: Path, data: str) -> None:
    assert load_job(written(tmp_path, f"data: {data}")).data.name == data


def test_aliases_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    text = "\ufeffschedule: {name: constant, warmup: &w 0.1}\ndata: {name: mnist, validation: *w}"
    job = load_job(written(tmp_path, text))
    assert (job.schedule.warmup, job.data.validation) == (0.1, 0.1)


BROKEN = [
    ("", "job.yaml: the file is empty; write at least one setting, such as 'model: mnist-cnn'"),
    ("# x\n",
     "job.yaml: the file is empty; write at least one setting, such as 'model: mnist-cnn'"),
    ("\n- 1\n", "job.yaml:2: the file holds a list; a job is settings by name, "
     "such as 'model: mnist-cnn'"),
    ("mnist", "job.yaml:1: the file holds a single value; a job is settings by name, "
     "such as 'model: mnist-cnn'"),
    ("epochs: 1\nname: [a", "job.yaml:2: not valid YAML: expected ',' or ']', but got the end of "
     "it while parsing a flow sequence"),
    ("epochs: 1\nname: a: b", "job.yaml:2: not valid YAML: mapping values are not allowed here"),
    ("batch:\n\tglobal: 1", "job.yaml:2: not valid YAML: a tab cannot indent; use spaces"),
    ("epochs: 1\n---\nepochs: 2",
     "job.yaml:2: a second document starts here; write one job per file"),
    ("epochs: 1\nseed: 2\nepochs: 3",
     "job.yaml:3: key 'epochs' is given twice (first on line 1); keep one"),
    ("batch: {global: 1,\n  global: 2}",
     "job.yaml:2: key 'global' is given twice (first on line 1); keep one"),
    ("epochs: *x", "job.yaml:1: not valid YAML: found undefined alias 'x'"),
    ("name: &x [*x]", "job.yaml:1: alias '*x' refers to itself"),
    ("epochs: !!int x", "job.yaml:1: 'x' cannot be read as int"),
    ("epochs: !mine 3", "job.yaml:1: tag '!mine' has no meaning here; remove it"),
    ("epochs: !!set {a}", "job.yaml:1: tag 'set' has no meaning here; remove it"),
    ("1: 2", "job.yaml:1: a key must be text, not 1"),
    ("? [a]\n: 2", "job.yaml:1: a key must be text, not [a]"),
    (b"epochs: 1\nname: \xff", "job.yaml:2: this is not UTF-8 text; save the file as UTF-8"),
    ("epochs: 1\nname: \x01", "job.yaml:2: character 0x1 is not allowed in YAML"),
    ("[" * 600, "job.yaml: values are nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=range(len(BROKEN)))
def test_file_that_is_no_job(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_job(written(tmp_path, text))
    assert str(caught.value).removeprefix(f"{tmp_path}/") == message


def test_number_with_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"job\.yaml:1: '9+\.\.\. cannot be read as int$"):
        load_job(written(tmp_path, f"epochs: {'9' * 5000}"))


def test_aliases_that_multiply_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [" + ", ".join("x" * 10) + "]"]
    lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 9)]
    with pytest.raises(SpecError, match="the file has more than 100000 values"):
        load_job(written(tmp_path, "\n".join(lines)))


def test_missing_file_names_a_similar_one(tmp_path: Path) -> None:
    written(tmp_path, EXAMPLE)
    with pytest.raises(SpecError) as caught:
        load_job(tmp_path / "jobs.yaml")
    message = f"{tmp_path}/jobs.yaml: there is no such file; did you mean 'job.yaml'?"
    assert str(caught.value) == message


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none/job\.yaml: there is no such file$"):
        load_job(tmp_path / "none" / "job.yaml")


def test_directory_is_not_a_job(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r": this is a directory, not a file$"):
        load_job(tmp_path)


def test_mapping_may_hold_specs_and_is_not_changed() -> None:
    mapping = {"optimizer": SgdSpec(lr=0.1), "data": {"name": "mnist", "augment": ("flip",)}}
    job = job_from_mapping(mapping, ["optimizer.momentum=0.5", "data.augment=[]"])
    assert job.optimizer == SgdSpec(lr=0.1, momentum=0.5)
    assert job.data.augment == ()
    assert mapping == {
        "optimizer": SgdSpec(lr=0.1),
        "data": {"name": "mnist", "augment": ("flip",)},
    }


def test_empty_mapping_is_the_default_job() -> None:
    assert job_from_mapping({}) == JobSpec()


def test_data_and_modules_beside_the_job_file_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    (project / "own.npz").touch()
    (project / "nets_beside.py").touch()
    (project / "job.yaml").write_text("{data: ./own.npz, model: nets_beside:build}")
    monkeypatch.chdir(elsewhere)
    job = load_job(project / "job.yaml")
    assert job.data.name == str(project / "own.npz")
    assert job.python_path == (str(project),)
    # Seen from its own folder a job stays as it was written.
    monkeypatch.chdir(project)
    assert load_job("job.yaml").data.name == "./own.npz"


def test_data_that_is_not_beside_the_job_file_is_left_to_the_other_places(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("data: {name: ./other.npz}")
    assert load_job(tmp_path / "job.yaml").data.name == "./other.npz"
