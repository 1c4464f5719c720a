"""Take seats on a Ray cluster as machines of a pool: one actor per seat, which calls home.

A placement group reserves the cores of all seats or of none. Each actor runs `agent.dial`,
whose source it is sent with its ticket, so nothing but Ray, pyzmq and torch has to be there. When
Ray loses an actor its machine is lost, with what Ray says as the reason. Only this module uses Ray.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from phalanx.agent.dialled import ANY_ADDRESS, CallDesk, CallPort, SeatRoute, dial_source
from phalanx.errors import LaunchError, PlanError, SpecError, printable
from phalanx.pool import seat
from phalanx.pool.scheduler import RouteMaker, Scheduler
from phalanx.pool.seat import serve_seat
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec
from phalanx.spec.scheduler import RaySpec

_LOOK_S = 0.5
_KILL_S = 10.0


class RayScheduler(Scheduler):
    """The Ray cluster that lends the seats of a pool."""

    @override
    def machines(self, defaults: Mapping[str, object]) -> list[dict[str, object]]:
        _import_ray()
        spec = self._settings
        limit = {} if spec.memory is None else {"memory": spec.memory}
        return [
            {"host": f"seat-{number}", "cores": spec.cores, **limit} for number in range(spec.seats)
        ]

    @override
    @contextmanager
    def routes(self, pool: PoolSpec) -> Iterator[RouteMaker]:
        ray, spec = _import_ray(), self._settings
        with _connected(ray, spec.address):
            addresses = _own_addresses(ray)
            listen = addresses[0] if len(addresses) == 1 else ANY_ADDRESS
            python = pool.defaults.python if "python" in pool.defaults.model_fields_set else ""
            with CallDesk(listen) as desk:
                seats = RaySeats(ray, spec, [one.title for one in pool.machines])
                try:
                    seats.reserve()
                    yield lambda machine: seats.route(
                        machine, desk.open_port(machine.title, addresses, python)
                    )
                finally:
                    seats.close()

    @property
    def _settings(self) -> RaySpec:
        assert isinstance(self.spec, RaySpec)
        return self.spec


class _Seat:
    """Actor of one seat; it is sent by value, so that no Phalanx has to be there."""

    def serve(self, source: str, ticket: dict[str, Any]) -> str:
        """Run the agent of the seat until the controller lets it go."""
        import importlib

        ray: Any = importlib.import_module("ray")
        return serve_seat(source, ticket, {"node": ray.util.get_node_ip_address()})


class RaySeats:
    """Seats of one pool on a Ray cluster.

    Args:
        ray: The module of Ray, connected to the cluster.
        spec: Settings of the seats.
        names: Names of the seats that are wanted.
    """

    def __init__(self, ray: Any, spec: RaySpec, names: list[str]) -> None:
        self._ray = ray
        self._spec = spec
        self._names = names
        self._group: Any = None
        self._actors: list[Any] = []
        self._ports: dict[Any, CallPort] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="ray-seats", daemon=True)

    def reserve(self) -> None:
        """Reserve the cores of all seats.

        Raises:
            PlanError: The cluster has no room for them.
        """
        spec, ray = self._spec, self._ray
        bundle: dict[str, float] = {"CPU": spec.cores}
        if spec.memory is not None:
            bundle["memory"] = spec.memory
        strategy = spec.placement.upper()
        self._group = ray.util.placement_group([bundle] * len(self._names), strategy=strategy)
        if not self._group.wait(spec.start_s):
            room = seats_in([node for node in ray.nodes() if node["Alive"]], bundle)
            busy = ", some of it in use" if room >= len(self._names) else ""
            raise PlanError(
                f"Ray did not reserve {len(self._names)} seats of {spec.cores:g} cores within "
                f"{spec.start_s:g} s: its nodes have room for {room}{busy}; set fewer 'seats' or "
                "'cores' in the pool file, or add nodes"
            )
        self._watcher.start()

    def route(self, machine: MachineSpec, port: CallPort) -> SeatRoute:
        """Start the actor of a seat, and return the way to it."""
        ray, spec = self._ray, self._spec
        place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=self._names.index(machine.title)
        )
        # Never restarted by Ray: a seat that comes back would be another machine.
        options = {"num_cpus": spec.cores, "max_restarts": 0, "scheduling_strategy": place}
        if spec.memory is not None:
            options["memory"] = spec.memory
        actor = ray.remote(_Seat).options(**options).remote()
        served = actor.serve.remote(dial_source(), port.ticket)
        with self._lock:
            self._actors.append(actor)
            self._ports[served] = port
        return SeatRoute(machine, port, call_s=spec.start_s)

    def close(self) -> None:
        """End all actors and give the cores back."""
        self._closing.set()
        if self._watcher.is_alive():
            self._watcher.join()
        # Those whose agents have ended return by themselves; the others are killed.
        if self._ports:
            self._ray.wait(list(self._ports), num_returns=len(self._ports), timeout=_KILL_S)
        for actor in self._actors:
            self._ray.kill(actor)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)

    def _watch(self) -> None:
        """Tell the port of each seat what Ray says when its actor has ended."""
        known: set[Any] = set()
        while not self._closing.wait(_LOOK_S):
            with self._lock:
                left = [served for served in self._ports if served not in known]
            if not left:
                continue
            done, _ = self._ray.wait(left, num_returns=len(left), timeout=0)
            for served in done:
                known.add(served)
                self._ports[served].lose(self._verdict(served))

    def _verdict(self, served: Any) -> str:
        try:
            return str(self._ray.get(served))
        except Exception as error:  # whatever the actor raised, or Ray instead of it
            lines = [line.strip() for line in printable(str(error)).splitlines() if line.strip()]
            last = lines[-1] if "LineBroken" in str(error) and lines else (lines or ["it ended"])[0]
            return f"Ray says: {last.rstrip('.')}"


def seats_in(nodes: list[dict[str, Any]], bundle: Mapping[str, float]) -> int:
    """Count the seats that fit on the nodes of a cluster when nothing else uses them; pure.

    Args:
        nodes: As `ray.nodes()` returns them.
        bundle: What one seat needs.
    """
    return sum(
        int(min(node["Resources"].get(name, 0.0) // amount for name, amount in bundle.items()))
        for node in nodes
    )


def _import_ray() -> Any:
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        raise SpecError(
            "'scheduler: ray' needs Ray, which is not installed here; install it with "
            f"`pip install 'phalanx[ray]'` ({error})"
        ) from error
    for module in (sys.modules[__name__], seat):
        ray.cloudpickle.register_pickle_by_value(module)
    return ray


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Be part of the cluster within the block; a session of the caller's is used and left alone."""
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", namespace="phalanx")
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = printable(str(error)).strip().splitlines() or [type(error).__name__]
        raise LaunchError(
            f"no Ray cluster answers at '{address}' ({said[0].rstrip('.')}); start one with `ray "
            "start --head`, or set 'address' in the pool file"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _own_addresses(ray: Any) -> list[str]:
    """Return addresses by which the nodes of the cluster may reach this machine."""
    found = [ray.util.get_node_ip_address()]
    for node in ray.nodes():
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            # Sends nothing; connecting a UDP socket only selects the route.
            way.connect((node["NodeManagerAddress"], 9))
            found.append(way.getsockname()[0])
    return list(dict.fromkeys(found))
