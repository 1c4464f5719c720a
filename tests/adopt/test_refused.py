"""Scripts that cannot be shared out are refused by name, at the line, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.adopt.analysis import adopt, adopt_file
from phalanx.errors import SpecError

HERE = Path(__file__).parent

REFUSALS = {
    "accelerate_accumulate": {(6, "accelerate-accumulate"), (13, "accelerate-accumulate")},
    "clamped_weights": {(18, "weights-by-hand")},
    "endless_while": {(8, "endless-loop")},
    "folds": {(7, "several-trainings")},
    "full_batch_gcn": {(20, "full-batch")},
    "get_batch": {(9, "random-batches")},
    "gradient_tape": {(8, "gradient-tape")},
    "half_weights": {(7, "half-weights")},
    "hidden_state": {(14, "hidden-state")},
    "horovod_loop": {(0, "other-launcher")},
    "keras_fit": {(9, "keras-fit")},
    "layer_optimizers": {(9, "optimizer-per-layer")},
    "lbfgs": {(7, "lbfgs")},
    "lightning_module": {(0, "framework-loop")},
    "loader_per_epoch": {(9, "loader-per-epoch")},
    "loop_elsewhere": {(10, "loop-elsewhere")},
    "mixed_loss": {(16, "mixed-loss")},
    "next_batch": {(11, "next-batch")},
    "optimizer_list": {(7, "optimizer-per-layer")},
    "rank_function": {(5, "reads-rank")},
    "reads_rank": {(6, "reads-rank")},
    "reinforce": {(5, "reinforcement-learning")},
    "several_updates": {(10, "several-updates")},
    "sgd_by_hand": {(14, "weights-by-hand")},
    "shared_networks": {(11, "shared-parameters")},
    "sparse_embedding": {(6, "sparse-gradients"), (7, "sparse-gradients")},
    "spawned_ddp": {(24, "multiprocessing")},
    "stops_after_batches": {(11, "leaves-early")},
    "stops_on_loss": {(12, "leaves-on-loss")},
    "stream_without_length": {(15, "no-length")},
    "token_mean": {(15, "token-mean")},
    "two_loaders": {(10, "two-loaders")},
    "uneven_accumulate": {(12, "conditional-step")},
    "unseeded_split": {(6, "unseeded-split")},
}


def test_every_script_has_an_expectation() -> None:
    assert {path.stem for path in (HERE / "refused").glob("*.py")} == set(REFUSALS)


@pytest.mark.parametrize("name", sorted(REFUSALS))
def test_refused_by_name(name: str) -> None:
    adoption = adopt_file(HERE / "refused" / f"{name}.py")
    assert {(one.line, one.name) for one in adoption.refusals} == REFUSALS[name]
    assert adoption.rewritten is None
    assert adoption.diff == ""
    assert adoption.strategies == []
    assert all(one.what and one.why and one.todo for one in adoption.refusals)


def test_what_would_have_been_changed_is_not_listed() -> None:
    adoption = adopt_file(HERE / "refused" / "accelerate_accumulate.py")
    assert {one.severity for one in adoption.findings} <= {"refused", "note"}


def test_text_that_is_not_python_3_is_refused_in_one_sentence() -> None:
    with pytest.raises(SpecError, match=r"train.py, line 1: not Python 3"):
        adopt("print 'hello'\n", "train.py")


def test_notebooks_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="nbconvert --to script"):
        adopt_file(tmp_path / "train.ipynb")
    with pytest.raises(SpecError, match="cannot read"):
        adopt_file(tmp_path / "train.py")


def test_a_library_without_training_is_refused() -> None:
    adoption = adopt("import torch\n\n\ndef double(x):\n    return 2 * x\n")
    assert [one.name for one in adoption.refusals] == ["no-training"]


def test_an_empty_file_is_refused() -> None:
    assert [one.name for one in adopt("").refusals] == ["no-training"]
