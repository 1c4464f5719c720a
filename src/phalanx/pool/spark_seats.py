"""Take seats on a Spark cluster as machines of a pool: one job of one task per seat.

Plain jobs, not a barrier stage, which Spark never retries and which kills the tasks that are left.
Each task runs `agent.dial`, whose source it is sent with its ticket, so nothing but PySpark, pyzmq
and torch has to be there. Only this module uses PySpark.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from phalanx.agent.dialled import ANY_ADDRESS, CallDesk, CallPort, SeatRoute, dial_source
from phalanx.errors import LaunchError, PlanError, SpecError, printable
from phalanx.pool import seat
from phalanx.pool.scheduler import RouteMaker, Scheduler
from phalanx.pool.seat import serve_seat
from phalanx.pool.spark_rules import Offer, check_overhead, too_few, verdict
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec
from phalanx.spec.scheduler import SparkSpec

_LOOK_S = 0.5
_SETTLED_S = 15.0
_RETURN_S = 10.0
_VERDICT_S = 0.2
_CANCEL_S = 20.0
# Quiet, because standard error is the user's screen; no copies of seats that seem slow.
_OWN_SESSION = {
    "spark.app.name": "phalanx",
    "spark.log.level": "ERROR",
    "spark.speculation": "false",
    "spark.ui.showConsoleProgress": "false",
}


class SparkScheduler(Scheduler):
    """The Spark cluster that lends the seats of a pool."""

    @override
    def machines(self, defaults: Mapping[str, object]) -> list[dict[str, object]]:
        import_pyspark("'scheduler: spark'")
        spec = self._settings
        limit = {} if spec.memory is None else {"memory": spec.memory}
        return [
            {"host": f"seat-{number}", "cores": spec.cores, **limit} for number in range(spec.seats)
        ]

    @override
    @contextmanager
    def routes(self, pool: PoolSpec) -> Iterator[RouteMaker]:
        spec = self._settings
        with _session(spec) as session:
            seats = SparkSeats(session, spec)
            address = seats.driver_address
            seats.check()
            python = pool.defaults.python if "python" in pool.defaults.model_fields_set else ""
            with CallDesk(ANY_ADDRESS) as desk:
                try:
                    yield lambda machine: seats.route(
                        machine, desk.open_port(machine.title, [address], python)
                    )
                finally:
                    seats.close()

    @property
    def _settings(self) -> SparkSpec:
        assert isinstance(self.spec, SparkSpec)
        return self.spec


class SparkSeats:
    """Seats of one pool in a Spark session.

    Args:
        session: The session.
        spec: Settings of the seats.
    """

    def __init__(self, session: Any, spec: SparkSpec) -> None:
        self._session = session
        self._spec = spec
        self._tag = f"phalanx-{uuid.uuid4().hex}"
        self._threads: list[threading.Thread] = []
        self._settings = Settings(session)
        self._profile = self._make_profile()

    @property
    def driver_address(self) -> str:
        """Return the address by which executors reach this machine."""
        host = self._spec.address or self._settings.get("spark.driver.host")
        if host is None:
            raise SpecError(
                "this Spark session does not say at which address the executors reach this "
                "machine; set 'address' of the scheduler in the pool file"
            )
        try:
            return socket.gethostbyname(host)
        except OSError as error:
            raise SpecError(
                f"'{host}' is no address of this machine ({error}); set 'address' of the scheduler "
                "in the pool file"
            ) from error

    def check(self) -> None:
        """Check that Spark offers the seats.

        Raises:
            PlanError: Too few slots, or too little memory beside the heap.
        """
        offer = Offer.of(self._settings.get)
        check_overhead(self._spec, offer)
        if offer.is_dynamic or self._settings.is_connect:
            return  # executors come when there are tasks: whoever does not call is counted
        begun = changed = time.monotonic()
        slots = 0
        while True:
            found = self._count_slots()
            now = time.monotonic()
            if found >= self._spec.seats:
                return
            if found != slots:
                slots, changed = found, now
            if now - begun > self._spec.start_s or (slots and now - changed > _SETTLED_S):
                raise PlanError(too_few(self._spec, slots))
            threading.Event().wait(_LOOK_S)

    def route(self, machine: MachineSpec, port: CallPort) -> SeatRoute:
        """Start the job of a seat, and return the way to it."""
        name = f"seat-{machine.title}"
        thread = threading.Thread(target=self._run, args=(machine, port), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        # Not long: Spark says what it has lost after it has started the task elsewhere.
        return SeatRoute(machine, port, call_s=self._spec.start_s, verdict_s=_VERDICT_S)

    def close(self) -> None:
        """End all jobs: those whose agents have ended return by themselves."""
        self._join(_RETURN_S)
        if any(thread.is_alive() for thread in self._threads):
            # A session that is gone has no jobs left.
            with contextlib.suppress(Exception):
                self._session.interruptTag(self._tag)
            self._join(_CANCEL_S)

    def _join(self, limit_s: float) -> None:
        ends = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))

    def _run(self, machine: MachineSpec, port: CallPort) -> None:
        """Run the job of a seat, and tell its port what Spark says when it has ended."""
        source, ticket = dial_source(), port.ticket

        def task(batches: Iterator[Any]) -> Iterator[Any]:
            return serve_task(batches, source, ticket)

        session = self._session
        try:
            session.addTag(self._tag)
            with self._described(f"Phalanx: {machine.title}"):
                rows = session.range(0, 1, 1, 1).mapInArrow(
                    task, "said string", **({"profile": self._profile} if self._profile else {})
                )
                reason = str(rows.collect()[0]["said"])
        except Exception as error:  # whatever the task raised, or Spark instead of it
            reason = verdict(printable(str(error)))
        port.lose(reason)

    @contextmanager
    def _described(self, text: str) -> Iterator[None]:
        """Name the jobs of this thread in Spark's pages."""
        if not self._settings.is_connect:
            self._session.sparkContext.setJobDescription(text)
        yield

    def _make_profile(self) -> Any:
        """Return the resources of a seat's task; None: those of any task."""
        if self._spec.cores == int(self._settings.get("spark.task.cpus") or 1):
            return None
        resource = importlib.import_module("pyspark.resource")
        requests = resource.TaskResourceRequests().cpus(self._spec.cores)
        profile = resource.ResourceProfileBuilder().require(requests).build
        if not self._settings.is_connect:
            # Spark counts slots of profiles that it knows; it would learn of it by the first job.
            manager = self._session.sparkContext._jsc.sc().resourceProfileManager()
            manager.addResourceProfile(profile._java_resource_profile)
        return profile

    def _count_slots(self) -> int:
        context = self._session.sparkContext._jsc.sc()
        profile = context.resourceProfileManager().defaultResourceProfile()
        if self._profile is not None:
            profile = self._profile._java_resource_profile
        return int(context.maxNumConcurrentTasks(profile))


class Settings:
    """Settings of a Spark session.

    Args:
        session: The session; classic or Connect.
    """

    def __init__(self, session: Any) -> None:
        self.is_connect = type(session).__module__.startswith("pyspark.sql.connect")
        self._conf = session.conf

    def get(self, name: str) -> str | None:
        """Return a setting; None: it is not set."""
        found = self._conf.get(name, None)
        return None if found is None else str(found)


def serve_task(batches: Iterator[Any], source: str, ticket: dict[str, Any]) -> Iterator[Any]:
    """Serve a seat in a task of Spark; it is sent by value."""
    import importlib

    arrow: Any = importlib.import_module("pyarrow")
    context: Any = importlib.import_module("pyspark").TaskContext.get()
    for _ in batches:
        pass
    if context.attemptNumber() > 0:
        said = stand_by(ticket, context.attemptNumber())
    else:
        said = serve_seat(source, ticket, place_facts())
    yield arrow.record_batch([arrow.array([said])], names=["said"])


def stand_by(ticket: dict[str, Any], attempt: int) -> str:
    """Wait in a second copy of a seat while the first lives: to end would end the first, too."""
    import socket
    import time

    while True:
        try:
            for address in ticket["addresses"]:
                socket.create_connection((address, ticket["port"]), 4.0).close()
        except OSError:
            return f"Spark has lost its task and started another (attempt {attempt + 1})"
        time.sleep(1.0)


def place_facts() -> dict[str, str]:
    """Return what a task knows of its place; it is sent by value."""
    import os
    import socket

    # Kubernetes and YARN set a variable, the standalone cluster names the folder by it.
    names = [os.environ.get(one) for one in ("SPARK_EXECUTOR_ID", "CONTAINER_ID")]  # noqa: TID251
    executor = next((one for one in names if one), os.path.basename(os.getcwd()))
    return {"host": socket.gethostname(), "executor": executor}


def import_pyspark(what: str) -> Any:
    """Import PySpark.

    Args:
        what: What needs it, for the message.

    Raises:
        SpecError: It is not installed.
    """
    try:
        pyspark = importlib.import_module("pyspark")
        importlib.import_module("pyspark.sql")
        pickler = importlib.import_module("pyspark.cloudpickle")
    except ImportError as error:
        raise SpecError(
            f"{what} needs PySpark, which is not installed here; install it with "
            f"`pip install 'phalanx[spark]'`, and Java 17 ({error})"
        ) from error
    for module in (sys.modules[__name__], seat):
        pickler.register_pickle_by_value(module)
    return pyspark


@contextmanager
def _session(spec: SparkSpec) -> Iterator[Any]:
    """Open a session for the block; one of the caller's is used and left alone."""
    import_pyspark("'scheduler: spark'")
    sql = importlib.import_module("pyspark.sql")
    active = sql.SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    builder = sql.SparkSession.builder
    for name, value in {**_OWN_SESSION, **spec.settings}.items():
        builder = builder.config(name, value)
    if spec.master is not None:
        builder = builder.master(spec.master)
    session = _opened(builder.getOrCreate, spec)
    try:
        yield session
    finally:
        session.stop()


def _opened(open_session: Callable[[], Any], spec: SparkSpec) -> Any:
    try:
        return open_session()
    except Exception as error:  # Java is missing, or says anything
        said = [line for line in printable(str(error)).splitlines() if line.strip()]
        raise LaunchError(
            f"no Spark session could be opened at '{spec.master or 'the default master'}' "
            f"({(said or [type(error).__name__])[0].rstrip('.')}); check 'master' in the pool "
            "file, and that Java 17 is installed"
        ) from error
