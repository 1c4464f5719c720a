"""What counts as printed as shown: figures and names of runs may differ, words may not."""

from __future__ import annotations

import pytest

from support.pages import Call


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("run  first-20261118-110000-ab12", "run first-20271231-235959-0000\n", True),
        ("epoch 1/3 done  0.10 s", "epoch 2/3 done  950 ms\n", True),
        ("sent   73.7 MiB", "sent 980 KiB\n", True),
        ("accuracy 98.33 %", "loss 98.33 %\n", False),
        ("accuracy 98.33 %", "accuracy - %\n", False),
        ("bar ▒▒▒███░", "bar ▒███████▓▓░░\n", True),
        ("one\n...\nlast", "one\ntwo\nthree\nlast\n", True),
        ("one\n...\nlast", "one\nlast\n", True),
        ("one\nlast", "one\ntwo\nlast\n", False),
        ("one", "one\ntwo\n", False),
        ("worker-0 waits", "worker-1 waits\n", False),
        ("a  0.06 s  -", "a  -  1.2 ms\n", True),
        ("2 workers x 1 thread, fp32", "2 workers x 4 threads, bf16\n", True),
    ],
)
def test_words_count_and_figures_do_not(shown: str, printed: str, same: bool) -> None:
    assert Call("command", tuple(shown.splitlines())).matches(printed) is same
