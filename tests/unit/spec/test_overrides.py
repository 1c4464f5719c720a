"""`--set path=value`: what it changes, what it drops, and how its mistakes are reported."""

import pytest

from phalanx.errors import SpecError
from phalanx.spec.data import BatchSpec
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec, OuterStepSpec
from phalanx.spec.loss import LossSpec
from phalanx.spec.model import ResnetSpec, UserModelSpec
from phalanx.spec.optimize import AdamSpec, EarlyStopSpec, SgdSpec
from phalanx.spec.schedule import MilestonesSpec

BASE = {
    "optimizer": "sgd",
    "batch": {"global": 128, "shares": [1, 2]},
    "workers": 2,
    "strategy": {"name": "allreduce", "compression": "bf16"},
    "schedule": {"name": "milestones", "at": [0.5]},
}


def changed(*overrides: str) -> JobSpec:
    return job_from_mapping(BASE, overrides)


def test_short_form_is_widened_when_a_part_is_set() -> None:
    assert changed("optimizer.lr=0.2").optimizer == SgdSpec(lr=0.2)


def test_part_of_what_is_left_out_starts_from_the_default() -> None:
    assert changed("loss.label_smoothing=0.1").loss == LossSpec(label_smoothing=0.1)
    assert changed("early_stop.patience=5").early_stop == EarlyStopSpec(patience=5)
    shares = job_from_mapping({"workers": 2}, ["batch.shares=[1, 3]"]).batch
    # Where a pool would choose the number of workers, their shares say it.
    alone = job_from_mapping({}, ["batch.shares=[1, 3]"])
    assert (alone.workers, "workers" in alone.model_fields_set) == (2, True)
    assert shares == BatchSpec.model_validate({"global": 128, "shares": [1, 3]})


def test_value_is_yaml() -> None:
    job = changed("model={name: resnet, n: 3}", "data.shard=off", "optimizer.lr=1e-3")
    assert job.model == ResnetSpec(n=3)
    assert (job.data.shard, job.optimizer.lr) == ("off", 1e-3)


def test_whole_part_is_replaced() -> None:
    assert changed("strategy=allreduce").strategy == AllreduceSpec()
    assert changed("strategy=local_sgd").strategy == LocalSgdSpec()


def test_new_name_keeps_common_parts_and_drops_those_of_the_former_kind() -> None:
    mapping = {"optimizer": {"name": "sgd", "lr": 0.2, "momentum": 0.9, "l2": 0.1}}
    job = job_from_mapping(mapping, ["optimizer.name=adam"])
    assert job.optimizer == AdamSpec(lr=0.2, l2=0.1)


def test_same_name_drops_nothing() -> None:
    assert changed("strategy.name=allreduce").strategy == AllreduceSpec(compression="bf16")


def test_exclusive_setting_drops_the_other() -> None:
    assert job_from_mapping({}, ["batch.per_worker=8"]).batch == BatchSpec(per_worker=8)
    mapping = {"batch": {"global": 128}}
    assert job_from_mapping(mapping, ["batch.per_worker=8"]).batch == BatchSpec(per_worker=8)
    mapping = {"batch": {"per_worker": 8}}
    assert job_from_mapping(mapping, ["batch.global=64"]).batch.global_ == 64
    assert changed("schedule.at_epochs=[3]").schedule == MilestonesSpec(at_epochs=(3.0,))


def test_list_entry_is_set_by_its_index() -> None:
    assert changed("batch.shares.0=4").batch.shares == (4.0, 2.0)


def test_later_override_wins_and_builds_on_earlier_ones() -> None:
    job = changed("strategy=local_sgd", "strategy.every=4", "strategy.outer.lr=0.5", "workers=2")
    assert job.strategy == LocalSgdSpec(every=4, outer=OuterStepSpec(lr=0.5))
    assert changed("epochs=2", "epochs=5").epochs == 5


def test_deep_argument_of_a_user_model() -> None:
    job = changed("model=nets:build", "model.args.layers.first=3")
    assert job.model == UserModelSpec(name="nets:build", args={"layers": {"first": 3}})


def test_null_is_the_empty_value() -> None:
    assert job_from_mapping({"early_stop": {}}, ["early_stop="]).early_stop is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer.lr=x"],
         "--set optimizer.lr=x: optimizer.lr must be a number above 0, not 'x'"),
        (["workers=0"], "--set workers=0: workers must be a whole number from 1 to 4096, not 0"),
        (["epochs"], "--set epochs: an override is path=value, such as optimizer.lr=0.05"),
        (["=3"], "--set =3: an override is path=value, such as optimizer.lr=0.05"),
        (["a..b=3"], "--set a..b=3: an override is path=value, such as optimizer.lr=0.05"),
        (["epochs=[1"], "--set epochs=[1: not valid YAML: expected ',' or ']', but got the end of "
         "it while parsing a flow sequence"),
        (["workers.x=2"], "--set workers.x=2: workers is 2, which has no parts to set"),
        (["batch.shares.7=2"],
         "--set batch.shares.7=2: batch.shares has the entries 0 to 1, not '7'"),
        (["data.augment=[]", "data.augment.0=flip"],
         "--set data.augment.0=flip: data.augment is empty; set the whole list, "
         "such as data.augment=[...]"),
        (["optimizer.name=adm"], "--set optimizer.name=adm: unknown optimizer 'adm'; did you mean "
         "'adam'? (valid: sgd, adagrad, adadelta, adam, adamw)"),
        (["optimizer.momentum=0.9", "optimizer.name=adam"],
         "--set optimizer.momentum=0.9: unknown key 'momentum' in optimizer; it belongs to 'sgd' "
         "(valid: betas, clip_norm, ema, eps, l2, lr, name, weight_decay)"),
        (["batch={global: 1}", "batch.global=2", "batch.per_worker=3"],
         "--set batch.per_worker=3: batch takes exactly one of global and per_worker, "
         "such as {global: 128}"),
        (["batch.shares.1=0"],
         "--set batch.shares.1=0: batch.shares.1 must be a number above 0, not 0"),
        (["strategy.outer.lr=1"], "--set strategy.outer.lr=1: unknown key 'outer' in strategy; it "
         "belongs to 'local_sgd' (valid: bucket_bytes, compression, encrypt, name, topology)"),
        (["seed=x", "epochs=x"], "--set seed=x: seed must be a whole number from 0 to 4294967295, "
         "not 'x' (and 1 more: --set epochs=x: epochs must be a whole number above 0, not 'x')"),
    ],
)  # fmt: skip
def test_mistake_is_located_at_the_override(overrides: list[str], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        changed(*overrides)
    assert str(caught.value) == message
