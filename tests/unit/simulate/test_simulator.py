"""The simulator: laws that every run obeys, the formulas where they hold, and what goes wrong."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.plan.facts import ClusterModel, LinkFacts, NetworkFacts
from phalanx.plan.placement import Candidate, Seat
from phalanx.plan.predict import throughput_of
from phalanx.plan.workers import WorkerModels, worker_models
from phalanx.simulate.perturbation import Crash, Perturbation, SlowMachine, Straggling
from phalanx.simulate.run import SimulatedRun
from phalanx.simulate.simulator import simulate
from phalanx.spec.compression import Bf16Spec
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec, SingleSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import PhaseStrategy, SwitchSpec
from support.worlds import even, machine, on_machines, world

ASYNC = ParameterServerSpec(dispatch="dynamic")
SERVED = [
    ASYNC,
    ParameterServerSpec(servers=2, dispatch="dynamic"),
    ParameterServerSpec(servers="colocated", dispatch="dynamic"),
    ParameterServerSpec(consistency="bsp"),
    ParameterServerSpec(consistency="bsp", backup=1),
    ParameterServerSpec(consistency="ssp", staleness=2),
    ParameterServerSpec(consistency="dssp", staleness_range=(1, 4)),
    ParameterServerSpec(consistency="k_sync", k=2),
    ParameterServerSpec(consistency="k_async", k=2),
]


def run(
    size: int,
    strategy: StrategySpec,
    where: ClusterModel,
    *,
    rounds: int = 40,
    perturbations: list[Perturbation] | None = None,
    seed: int = 1,
) -> SimulatedRun:
    (found,) = simulate(
        on_machines(size, strategy),
        where,
        num_rounds=rounds,
        perturbations=perturbations or [],
        seed=seed,
    )
    return found


def crew_of(size: int, strategy: StrategySpec, where: ClusterModel) -> WorkerModels:
    group = worker_models(on_machines(size, strategy), where)
    assert isinstance(group, WorkerModels)
    return group


@settings(max_examples=25)
@given(st.sampled_from(SERVED), st.integers(3, 6), st.integers(0, 9))
def test_every_push_is_accounted_for_and_all_work_is_done(
    strategy: ParameterServerSpec, size: int, seed: int
) -> None:
    found = run(size, strategy, even(size), rounds=12, seed=seed)
    assert found.pushes == 12 * size
    assert sum(found.staleness.values()) + found.dropped + found.lost == found.pushes
    assert found.samples == 64 * sum(found.staleness.values())
    assert all(0 < share <= 1 for share in found.busy)


@settings(max_examples=25)
@given(
    st.sampled_from(SERVED),
    st.integers(3, 5),
    st.floats(0.0, 2.0),
    st.none() | st.floats(0.2, 1.5),
    st.integers(0, 4),
)
def test_a_crash_never_leaves_anybody_waiting(
    strategy: ParameterServerSpec, size: int, at: float, back: float | None, who: int
) -> None:
    crash = Crash(rank=who % size, at_s=at, noticed_s=0.1, back_s=back)
    found = run(size, strategy, even(size), rounds=10, perturbations=[crash])
    assert sum(found.staleness.values()) + found.dropped + found.lost == found.pushes
    # Lost work is done again by whoever is left; only dropped gradients are not.
    assert found.samples + 64 * found.dropped >= 64 * size * 10
    assert found.samples <= 64 * size * 11


def test_equal_seeds_give_equal_runs() -> None:
    where = even(4)
    first, second = run(4, ASYNC, where, seed=5), run(4, ASYNC, where, seed=5)
    assert first == second
    assert run(4, ASYNC, where, seed=6) != first


def test_one_worker_alone_takes_its_computation() -> None:
    where = even(1)
    found = run(1, SingleSpec(), where, rounds=200)
    assert found.elapsed_s / 200 == pytest.approx(0.075, rel=0.03)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("num_parameters", [1_200_000, 10_000_000])
@pytest.mark.parametrize(
    "strategy",
    [
        AllreduceSpec(),
        LocalSgdSpec(),
        ASYNC,
        ParameterServerSpec(servers=2, dispatch="dynamic"),
        ParameterServerSpec(servers="colocated", dispatch="dynamic"),
        ParameterServerSpec(consistency="ssp"),
        ParameterServerSpec(consistency="bsp"),
        ParameterServerSpec(consistency="bsp", servers=4),
    ],
    ids=lambda strategy: f"{strategy.name}-{getattr(strategy, 'consistency', '')}",
)
def test_the_formulas_where_their_assumptions_hold(
    strategy: PhaseStrategy, num_parameters: int, size: int
) -> None:
    where = even(size, num_parameters=num_parameters, bandwidth=1.17e8)
    found = run(size, strategy, where, rounds=60)
    expected = throughput_of(strategy, crew_of(size, strategy, where), where).samples_per_s
    assert found.samples_per_s == pytest.approx(expected, rel=0.1)


def test_unequal_workers_agree_with_the_queueing_network() -> None:
    machines = [machine(f"m{i}", 1e-3 * (1 + i % 3)) for i in range(7)]
    where = world(machines)
    found = run(6, ASYNC, where, rounds=80)
    expected = throughput_of(ASYNC, crew_of(6, ASYNC, where), where).samples_per_s
    assert found.samples_per_s == pytest.approx(expected, rel=0.1)


def test_servers_on_full_machines_slow_their_workers_down() -> None:
    # A model whose updates take a good part of a step, on machines without a core to spare.
    strategy = ParameterServerSpec(servers="colocated", dispatch="dynamic")
    light = even(3, bandwidth=1e10, update_s_per_byte=1e-12)
    heavy = even(3, bandwidth=1e10, update_s_per_byte=2e-8)
    before, after = run(3, strategy, light), run(3, strategy, heavy)
    assert after.samples_per_s < before.samples_per_s * 0.97
    expected = throughput_of(strategy, crew_of(3, strategy, heavy), heavy).samples_per_s
    assert after.samples_per_s == pytest.approx(expected, rel=0.1)


def linked(speeds: dict[str, float], **costs: object) -> ClusterModel:
    """Machines with ports of so many bytes per second each."""
    pairs = {
        one: {
            two: LinkFacts(latency_s=1e-4, bandwidth_bytes_per_s=min(speeds[one], speeds[two]))
            for two in speeds
            if two != one
        }
        for one in speeds
    }
    where = world([machine(name) for name in speeds], **costs)  # type: ignore[arg-type]
    return msgspec.structs.replace(where, network=NetworkFacts(pairs=pairs))


def test_a_slow_machine_does_not_keep_the_port_of_a_fast_server() -> None:
    # m1 serves. What the slow m3 sends there takes two seconds, of which the port is held for 5 ms.
    slow = linked({"m0": 1e9, "m1": 1e9, "m3": 2.4e6})
    seats = [Seat(machine="m0", batches=(64,), threads=4), Seat(machine="m1", servers=1)]
    alone = Candidate(seats=tuple(seats), strategy=ASYNC)
    beside = Candidate(
        seats=(seats[0], Seat(machine="m3", batches=(64,), threads=4), seats[1]), strategy=ASYNC
    )
    (first,), (second,) = (simulate(one, slow, num_rounds=400) for one in (alone, beside))
    assert second.busy[0] > 0.9 * first.busy[0]
    assert second.busy[1] < 0.1


def test_encryption_takes_longer_on_a_share_of_a_core() -> None:
    speeds = {"m0": 1e9, "m1": 1e9}
    plain, sealed = (
        run(1, ASYNC, linked(speeds, seal_s_per_byte=cost), rounds=100) for cost in (0.0, 1e-9)
    )
    whole_s = (sealed.elapsed_s - plain.elapsed_s) / 100
    assert 0.004 < whole_s < 0.025
    where = linked(speeds, seal_s_per_byte=1e-9)
    small = msgspec.structs.replace(where.machines["m0"], cores=0.25)
    where = msgspec.structs.replace(where, machines={**where.machines, "m0": small})
    shared = run(1, ASYNC, where, rounds=100)
    assert (shared.elapsed_s - plain.elapsed_s) / 100 > 2 * whole_s


def test_a_straggler_holds_up_lockstep_but_not_async() -> None:
    where = even(4, bandwidth=1e9)
    slow: list[Perturbation] = [SlowMachine(machine="m0", factor=4.0)]
    lockstep = [run(4, AllreduceSpec(), where, perturbations=d).samples_per_s for d in ([], slow)]
    flowing = [run(4, ASYNC, where, perturbations=d).samples_per_s for d in ([], slow)]
    assert lockstep[1] < lockstep[0] / 2.5
    assert flowing[1] > flowing[0] * 0.7


def test_a_bound_ties_all_to_a_straggler() -> None:
    where = even(4, bandwidth=1e9)
    slow: list[Perturbation] = [SlowMachine(machine="m0", factor=4.0)]
    bounded = ParameterServerSpec(consistency="ssp", staleness=3)
    free = run(4, ASYNC, where, perturbations=slow, rounds=60)
    tied = run(4, bounded, where, perturbations=slow, rounds=60)
    assert tied.samples_per_s < free.samples_per_s * 0.6


def test_backup_workers_save_the_wait_for_spells() -> None:
    where = even(6, bandwidth=1e9)
    spells: list[Perturbation] = [
        Straggling(machine=f"m{i}", factor=6.0, normal_s=3.0, slow_s=0.5) for i in range(6)
    ]
    plain = run(6, ParameterServerSpec(consistency="bsp"), where, perturbations=spells)
    spare = run(6, ParameterServerSpec(consistency="bsp", backup=1), where, perturbations=spells)
    assert spare.updates / spare.elapsed_s > plain.updates / plain.elapsed_s * 1.1
    assert spare.dropped > 0


def test_lockstep_repeats_what_a_crash_took() -> None:
    where = even(2, bandwidth=1e9, startup_s=3.0)
    calm = run(2, AllreduceSpec(), where)
    hit = run(2, AllreduceSpec(), where, perturbations=[Crash(rank=0, at_s=1.0, noticed_s=0.5)])
    assert hit.samples == calm.samples
    assert hit.lost > 0
    assert hit.elapsed_s == pytest.approx(calm.elapsed_s + 1.0 + 0.5 + 3.0, rel=0.05)


def test_a_switch_is_simulated_phase_by_phase() -> None:
    where = even(4)
    phases = simulate(on_machines(4, SwitchSpec(at=0.25)), where, num_rounds=40)
    assert [one.samples for one in phases] == [10 * 256, 30 * 256]


def test_hundreds_of_workers() -> None:
    strategy = ParameterServerSpec(servers=4, dispatch="dynamic")
    where = even(256, bandwidth=1e10)
    found = run(256, strategy, where, rounds=5)
    assert found.pushes == 5 * 256
    assert found.staleness_mean == pytest.approx(255, rel=0.3)


def test_bytes_are_those_of_the_push() -> None:
    where = even(2)
    plain = run(2, ASYNC, where, rounds=3)
    assert plain.sent_bytes == 3 * 2 * 4 * 1_200_000
    short = ASYNC.model_copy(update={"compression": Bf16Spec()})
    assert run(2, short, where, rounds=3).sent_bytes == plain.sent_bytes / 2
    predicted = throughput_of(ASYNC, crew_of(2, ASYNC, where), where)
    assert predicted.sent_bytes * 2 * 3 == plain.sent_bytes


def test_no_jitter_no_surprise() -> None:
    calm = even(3)
    machines = {
        name: msgspec.structs.replace(
            one, fits=tuple(msgspec.structs.replace(fit, jitter=0.0) for fit in one.fits)
        )
        for name, one in calm.machines.items()
    }
    where = msgspec.structs.replace(calm, machines=machines)
    assert run(3, ASYNC, where, seed=1) == run(3, ASYNC, where, seed=2)
