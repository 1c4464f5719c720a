from __future__ import annotations

import numpy as np

from phalanx.records.events import NetworkBuilt
from phalanx.records.weights import prepare_inputs


def test_inputs_are_prepared_as_the_network_was_trained() -> None:
    ids = np.array([[3, 40_000_001]], dtype=np.int32)
    network = NetworkBuilt([], [], (2,), 5, scale=[1.0], shift=[0.0], whole_numbers=True)
    found = prepare_inputs(ids, network)
    assert (found.dtype, found.tolist()) == (np.int64, ids.tolist())
    quantities = NetworkBuilt([], [], (2,), 5, scale=[2.0], shift=[1.0])
    assert prepare_inputs(np.array([[1, 2]]), quantities).tolist() == [[3.0, 5.0]]
