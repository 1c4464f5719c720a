from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import SpecError
from phalanx.records.profile import EpochProfile, OperatorTime, ProcessProfile, write_profile
from phalanx.report.grouping import GroupingSpec, load_grouping, make_grouping, read_grouping
from phalanx.report.profile import (
    DIRECTION,
    RunProfile,
    compare_profiles,
    profile_run,
    summarise_profiles,
)
from support.written import write_run

RULES = make_grouping(
    GroupingSpec.model_validate(
        {
            "groups": [
                {"name": "exchange", "match": ["all_reduce/*"]},
                {"name": "arithmetic", "match": ["re:::(add|mul)", "*/mm"]},
            ]
        }
    )
)


def operator(span: str, name: str, self_s: float, calls: int = 1) -> OperatorTime:
    return OperatorTime(span=span, name=name, calls=calls, self_s=self_s)


def epoch(number: int, wall_s: float, *operators: OperatorTime) -> EpochProfile:
    return EpochProfile(epoch=number, wall_s=wall_s, steps=1, operators=list(operators), beside=[])


def process(rank: int, *epochs: EpochProfile) -> ProcessProfile:
    return ProcessProfile(process=f"worker-{rank}", engine="torch 9", epochs=list(epochs))


def summary(*profiles: ProcessProfile, run: str = "x") -> RunProfile:
    return summarise_profiles(profiles, RULES, run=run, strategy="allreduce")


def test_figures_are_means_over_epochs_then_workers() -> None:
    found = summary(
        process(
            0,
            epoch(1, 10.0, operator("all_reduce", "", 2.0), operator("forward", "aten::add", 4.0)),
            epoch(2, 20.0, operator("all_reduce", "", 4.0), operator("forward", "x", 5.0)),
        ),
        process(1, epoch(1, 5.0, operator("all_reduce", "", 1.0))),
    )
    times = {one.group: one for one in found.groups}
    # Worker 0: wall 15, exchange 3, arithmetic 2, other 2.5, idle (4 + 11) / 2; worker 1: idle 4.
    assert found.wall_s == 10.0
    assert times["exchange"].mean_s == 2.0
    assert (times["exchange"].lowest_s, times["exchange"].highest_s) == (1.0, 3.0)
    assert times["arithmetic"].mean_s == 1.0
    assert times["other"].mean_s == 1.25
    assert times["idle"].mean_s == 5.75
    assert times["idle"].share == 0.575
    assert sum(one.mean_s for one in found.groups) == pytest.approx(found.wall_s)
    assert [one.group for one in found.groups][-1] == "idle"
    assert found.epochs == [1, 2]
    assert next((row.name, row.mean_s, row.calls) for row in found.operators) == ("", 2.0, 1.0)


def test_a_comparison_goes_from_a_to_b_and_says_so_in_words() -> None:
    a = summary(process(0, epoch(1, 10.0, operator("all_reduce", "", 4.0))), run="first")
    b = summary(
        process(0, epoch(1, 6.0, operator("all_reduce", "", 1.0), operator("f", "mm", 5.0))),
        run="second",
    )
    found = compare_profiles(a, b)
    assert (found.a, found.b, found.direction) == ("first", "second", DIRECTION)
    rows = {row.group: (row.a_s, row.b_s, row.b_over_a, row.verdict) for row in found.rows}
    assert rows["exchange"] == (4.0, 1.0, 0.25, "A takes 4.00 times as long")
    assert rows["arithmetic"] == (0.0, 5.0, None, "only B")
    assert rows["idle"] == (6.0, 0.0, 0.0, "only A")
    assert rows["total"] == (10.0, 6.0, 0.6, "A takes 1.67 times as long")
    assert [row.group for row in found.rows] == ["arithmetic", "exchange", "idle", "total"]


def test_turning_the_runs_round_turns_every_ratio_and_every_word_round() -> None:
    a = summary(process(0, epoch(1, 8.0, operator("all_reduce", "", 4.0))), run="a")
    b = summary(process(0, epoch(1, 4.0, operator("all_reduce", "", 1.0))), run="b")
    there = {row.group: row for row in compare_profiles(a, b).rows}
    back = {row.group: row for row in compare_profiles(b, a).rows}
    for group, row in there.items():
        assert row.b_over_a is not None
        assert back[group].b_over_a == pytest.approx(1 / row.b_over_a)
        assert row.verdict.replace("A", "B") == back[group].verdict


@pytest.mark.parametrize(
    ("span", "name", "group"),
    [
        ("input", "", "input"),
        ("forward", "aten::mkldnn_convolution", "convolution"),
        ("backward", "autograd::engine::evaluate_function: ConvolutionBackward0", "convolution"),
        ("forward", "aten::addmm", "dense"),
        ("backward", "aten::mm", "dense"),
        ("forward", "aten::native_batch_norm", "normalisation"),
        ("backward", "aten::threshold_backward", "activation"),
        ("forward", "aten::max_pool2d_with_indices", "pooling"),
        ("loss", "aten::eq", "loss"),
        ("backward", "aten::nll_loss_backward", "loss"),
        ("all_reduce", "", "all-reduce"),
        ("all_reduce", "aten::mul_", "all-reduce"),
        ("average", "aten::mul_", "all-reduce"),
        ("push", "aten::copy_", "parameter servers"),
        ("pull", "", "parameter servers"),
        ("apply", "aten::add_", "optimiser"),
        ("regulariser", "aten::add_", "regulariser"),
        ("forward", "aten::copy_", "copy"),
        ("backward", "torch::autograd::AccumulateGrad", "gradients"),
        ("forward", "", "framework"),
        ("forward", "aten::add_", "other"),
    ],
)
def test_the_packaged_rules(span: str, name: str, group: str) -> None:
    assert read_grouping()(span, name) == group


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("groups: [{name: idle, match: ['*']}]", "group 'idle' is made without a rule"),
        ("groups: [{name: a, match: ['re:(']}]", "is no regular expression"),
        ("groups: [{name: a, match: ['*']}, {name: a, match: ['x']}]", "'a' is there twice"),
        ("groups: [{name: a, mach: ['*']}]", "mach"),
        ("[]", "rules are a list under 'groups'"),
    ],
)
def test_wrong_rules_are_named_with_their_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        load_grouping(path)
    assert "rules.yaml" in str(caught.value)


def test_a_run_is_read_from_its_directory_and_one_without_a_profile_says_how_to_make_one(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path, {})
    with pytest.raises(SpecError, match=r"phalanx profile job\.yaml"):
        profile_run(run, RULES)
    write_profile(run, process(0, epoch(1, 10.0, operator("all_reduce", "", 4.0))))
    found = profile_run(run, RULES)
    assert (found.run, found.strategy, found.workers) == (run.name, "allreduce", 1)
