"""Seats on Spark, as far as no cluster is needed; tests/e2e/test_spark.py trains on a real one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from phalanx.agent.dialled import CallDesk
from phalanx.errors import PlanError, SpecError
from phalanx.pool.spark_rules import Offer, check_overhead, to_bytes, too_few, verdict
from phalanx.pool.spark_seats import stand_by
from phalanx.spec.pool_file import load_pool
from phalanx.spec.scheduler import SparkSpec
from phalanx.spec.worker import LOOPBACK


def offer(**settings: str) -> Offer:
    named: Mapping[str, str] = {f"spark.{key}": value for key, value in settings.items()}
    return Offer.of(named.get)


def executor(master: str, **settings: str) -> Offer:
    return offer(master=master, **{f"executor.{key}": value for key, value in settings.items()})


def test_without_pyspark_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    (tmp_path / "spark.yaml").write_text("scheduler: {name: spark, seats: 2}\n")
    with pytest.raises(SpecError, match=r"not installed here; .*`pip install 'phalanx\[spark\]'`"):
        load_pool(tmp_path / "spark.yaml")


@pytest.mark.parametrize(("text", "size"), [("2g", 2 << 30), ("512", 512 << 20), ("64kb", 65536)])
def test_sizes_are_read_as_spark_does(text: str, size: int) -> None:
    assert to_bytes(text, unit="m") == size


def test_a_container_without_room_beside_the_heap_is_refused() -> None:
    small = executor("yarn", memory="1g", cores="4")
    assert small.overhead_bytes == 384 << 20
    with pytest.raises(PlanError, match=r"2 seats need 768 MiB .* has 384 MiB .* 768m or more"):
        check_overhead(SparkSpec(seats=2, cores=2), small)
    check_overhead(SparkSpec(seats=2, cores=4), small)
    check_overhead(SparkSpec(seats=4), executor("yarn", cores="4", memoryOverhead="2g"))
    # Python on Kubernetes gets two fifths; elsewhere no container counts.
    assert executor("k8s://https://a", memory="10g").overhead_bytes == 4 << 30
    check_overhead(SparkSpec(seats=2, memory=8 << 30), executor("spark://a:7077", cores="4"))


def test_missing_slots_are_counted() -> None:
    said = too_few(SparkSpec(seats=4, cores=2), 3)
    assert said.startswith("Spark has 3 slots of 2 cores, and 4 are wanted; set fewer 'seats'")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("[SPARK_JOB_CANCELLED] Job 3 cancelled part of", "its job was cancelled in Spark"),
        ("Traceback\n LineBroken: it is gone.\n", "it is gone"),
        (
            "Job aborted due to stage failure:\nLost task 0.3: ExecutorLostFailure (executor 1).",
            "Spark says: ExecutorLostFailure (executor 1)",
        ),
        ("Something else.\n\tat java", "Spark says: Something else"),
        ("", "Spark says: it ended"),
    ],
)
def test_what_spark_says_becomes_one_sentence(said: str, sentence: str) -> None:
    assert verdict(said) == sentence


def test_a_second_copy_of_a_seat_waits_until_the_first_is_gone() -> None:
    """To return would end the first: Spark takes the result of whichever copy ends first."""
    said: list[str] = []
    with CallDesk(LOOPBACK) as desk:
        port = desk.open_port("seat-0", [LOOPBACK])
        copy = threading.Thread(target=lambda: said.append(stand_by(port.ticket, 1)))
        copy.start()
        copy.join(0.5)
        assert copy.is_alive()
        port.break_off()
        copy.join(30.0)
    assert said == ["Spark has lost its task and started another (attempt 2)"]
