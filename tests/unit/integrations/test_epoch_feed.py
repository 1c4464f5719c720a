"""Data for loops of frameworks, which count their epochs and stop at the last batch."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from phalanx.errors import EngineError
from phalanx.integrations.epoch_feed import EpochFeed
from phalanx.program.session import ScriptSession
from phalanx.program.standalone import StandaloneDriver


@pytest.fixture
def session() -> ScriptSession:
    driver = StandaloneDriver()
    driver.session = ScriptSession(driver)
    model = nn.Linear(1, 1)
    driver.session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return driver.session


def loader() -> DataLoader[object]:
    return DataLoader(TensorDataset(torch.arange(10.0).view(-1, 1)), 4)  # type: ignore[return-value]


def test_every_pass_is_an_epoch_until_there_is_none(session: ScriptSession) -> None:
    ended: list[int] = []
    feed = EpochFeed(session, loader(), epochs=2, on_end=lambda: ended.append(feed.epoch))
    assert (len(feed), feed.batch_size, len(feed.dataset)) == (3, 4, 10)
    assert [len(x) for (x,) in feed] == [4, 4, 2]
    iter(feed)  # frameworks make iterators that they do not use
    # Exactly as many as there are: no batch is asked for after the last.
    assert len(list(islice(feed, 3))) == 3
    feed.settle()
    assert (ended, feed.num_drawn) == ([0, 1], 0)
    assert list(feed) == []
    feed.finish()


def test_the_first_epoch_can_begin_early(session: ScriptSession) -> None:
    feed = EpochFeed(session, loader(), epochs=1)
    assert feed.begin() == 0
    assert len(list(feed)) == 3


def test_updates_can_be_fewer_than_a_pass_or_more(session: ScriptSession) -> None:
    feed = EpochFeed(session, loader(), epochs=9, steps=4)
    assert (len(feed), len(list(feed))) == (4, 4)
    feed.finish()


def test_a_loop_that_is_left_early_is_refused(session: ScriptSession) -> None:
    feed = EpochFeed(session, loader(), epochs=2)
    next(iter(feed))
    feed.settle()
    with pytest.raises(EngineError, match="left after 1 of 3 batches"):
        iter(feed)
