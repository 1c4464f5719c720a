"""The session of a script that runs by itself, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from phalanx.errors import EngineError, PhalanxError, SpecError
from phalanx.program.session import ScriptSession
from phalanx.program.standalone import StandaloneDriver


@pytest.fixture
def session() -> ScriptSession:
    driver = StandaloneDriver()
    driver.session = ScriptSession(driver)
    return driver.session


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def numbers(count: int = 10, batch: int = 4) -> DataLoader[object]:
    return DataLoader(TensorDataset(torch.ones(count, 1)), batch)  # type: ignore[return-value]


def test_it_is_one_worker_that_sees_every_batch_whole(session: ScriptSession) -> None:
    model = nn.Linear(1, 1)
    session.setup(model, sgd(model))
    feed = session.data(numbers())
    assert (session.rank, session.size, session.chief) == (0, 1, True)
    assert [[len(x) for (x,) in feed] for _ in session.epochs(2)] == [[4, 4, 2]] * 2
    assert session.report(accuracy=(3, 4), loss=(1.0, 2)) == {"accuracy": 0.75, "loss": 0.5}


def test_clip_norm_limits_a_step(session: ScriptSession) -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    session.setup(model, optimizer, clip_norm=0.5)
    before = model.weight.item()
    (1000 * model(torch.ones(1, 1)).sum()).backward()
    optimizer.step()
    assert before - model.weight.item() == pytest.approx(0.5, abs=1e-4)


def test_a_scheduler_made_before_or_after_setup_does_not_warn(session: ScriptSession) -> None:
    model = nn.Linear(1, 1)
    optimizer = sgd(model)
    before = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    session.setup(model, optimizer, before)
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    before.step()
    after.step()


def twice(session: ScriptSession) -> None:
    model = nn.Linear(1, 1)
    session.setup(model, sgd(model))
    session.setup(model, sgd(model))


def shared(session: ScriptSession) -> None:
    one = nn.Linear(1, 1)
    session.setup(one, sgd(one))
    session.setup(nn.Sequential(one), sgd(one))


def of_another(session: ScriptSession) -> None:
    session.setup(nn.Linear(1, 1), sgd(nn.Linear(1, 1)))


def lbfgs(session: ScriptSession) -> None:
    model = nn.Linear(1, 1)
    session.setup(model, torch.optim.LBFGS(model.parameters()))


def late(session: ScriptSession) -> None:
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    session.setup(model, sgd(model))
    for _ in session.data(numbers()):
        session.setup(other, sgd(other))


def without_model(session: ScriptSession) -> None:
    for _ in session.data(numbers()):
        pass


def without_data(session: ScriptSession) -> None:
    model = nn.Linear(1, 1)
    session.setup(model, sgd(model))
    next(iter(session.epochs(1)))


def two_feeds(session: ScriptSession) -> None:
    session.data(numbers())
    session.data(numbers())


def no_pair(session: ScriptSession) -> None:
    session.report(accuracy=0.5)  # type: ignore[arg-type]


def no_state(session: ScriptSession) -> None:
    model = nn.Linear(1, 1)
    session.setup(model, sgd(model), extra={"average": 3})


def second_pass(session: ScriptSession) -> None:
    model = nn.Linear(1, 1)
    session.setup(model, sgd(model))
    feed = session.data(numbers())
    for _ in range(2):
        for _ in feed:
            pass


def left_loop(session: ScriptSession) -> None:
    model = nn.Linear(1, 1)
    session.setup(model, sgd(model))
    feed = session.data(numbers())
    for _ in session.epochs(2):
        for _ in feed:
            break


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (twice, SpecError, "same model twice"),
        (shared, SpecError, "share parameters"),
        (of_another, SpecError, "not in the model"),
        (lbfgs, SpecError, "LBFGS evaluates the loss several times"),
        (late, SpecError, "after the loop has begun"),
        (without_model, SpecError, "call session.setup"),
        (without_data, SpecError, "call session.data"),
        (two_feeds, SpecError, "called twice for training"),
        (no_pair, SpecError, "sum and the count"),
        (no_state, SpecError, "no state_dict"),
        (second_pass, EngineError, "a second time in the same epoch"),
        (left_loop, EngineError, "has left its loop"),
    ],
)
def test_a_script_is_told_what_is_wrong(
    session: ScriptSession, script: object, kind: type[PhalanxError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        script(session)  # type: ignore[operator]
