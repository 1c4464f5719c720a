"""Read and write the run directory, the only state that outlives a run.

    <name>-<date>-<time>-<4 hex>/
      manifest.json        job, machine and versions
      manifest-N.json      the same before attempt N+1 changed the job
      status.json          running, finished, failed or interrupted, with the cause
      summary.json         results
      events/              one append-only log per process
      logs/                output of each process; the older part of long ones in *.log.1
      lock                 held by the controller; see `owner`
      checkpoints/         the newest few and the best
      servers/             last saved state of parameter servers
      distribution.json    partition of samples over workers, if the job distributes them
      predictions.json     predicted class of each test sample, for some data
      profile/             operator times of profiled epochs, one file per worker

A run has no state elsewhere: a copy of the directory is complete.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from phalanx.errors import SpecError, StoreError
from phalanx.records.distribution import Distribution
from phalanx.records.identity import ProcessIdentity
from phalanx.records.owner import LOCK
from phalanx.records.predictions import PartPredictions
from phalanx.records.summary import Summary
from phalanx.store.atomic import write_atomically

_VANISHED = "the controller vanished without a word"
# Of a controller on another machine, whose clock may be some seconds off.
_SILENT_S = 60.0
# Characters; a status of this length fits into one block of any file system.
_SHORT_CAUSE = 200
Record = TypeVar("Record", bound=msgspec.Struct)


class Status(msgspec.Struct, kw_only=True):
    """State of a run; written at every change."""

    state: str  # running, finished, failed, interrupted
    pid: int
    attempt: int
    cause: str | None = None
    rank: int | None = None
    process: ProcessIdentity | None = None
    """The controller; older versions recorded its pid only."""

    @classmethod
    def of_this_process(
        cls, state: str, *, attempt: int, cause: str | None = None, rank: int | None = None
    ) -> Status:
        """Make the status that the calling process, the controller of the run, writes."""
        own = ProcessIdentity.here()
        return cls(state=state, pid=own.pid, attempt=attempt, cause=cause, rank=rank, process=own)


def _made(path: Path) -> bool:
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


class RunDir:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: Path, name: str) -> RunDir:
        """Create a new, empty run directory below `root`."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        path = root / f"{name}-{stamp}-{secrets.token_hex(2)}"
        try:
            root.mkdir(parents=True, exist_ok=True)
            while not _made(path):  # another run of this second drew the same number
                path = root / f"{name}-{stamp}-{secrets.token_hex(2)}"
            for part in ("events", "logs", "checkpoints"):
                (path / part).mkdir()
        except OSError as error:
            raise StoreError(
                f"cannot create the run directory {path}: {error.strerror}; "
                "choose another place with --runs",
                path=str(path),
            ) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Open an existing run directory."""
        if not (path / "manifest.json").is_file():
            raise SpecError(f"{path} is not a run directory: it has no manifest.json")
        return cls(path)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """Directory of checkpoints."""
        return self.path / "checkpoints"

    def events_path(self, process: str) -> Path:
        """Return the path of the event log of a process such as `worker-0` or `controller`."""
        return self.path / "events" / f"{process}.jsonl"

    def profile_path(self, process: str) -> Path:
        """Return the path of the operator times of a process."""
        return self.path / "profile" / f"{process}.json"

    def write_status(self, status: Status) -> None:
        """Replace the status atomically, or overwrite it in place on a full disk."""
        path = self.path / "status.json"
        try:
            write_atomically(path, msgspec.json.encode(status))
        except StoreError:
            if not path.exists():
                raise
            status.cause = (status.cause or "")[:_SHORT_CAUSE] or None
            _overwrite(path, msgspec.json.encode(status))

    def read_status(self) -> Status:
        """Read the status, corrected to `lost` if it is running but its controller is gone."""
        try:
            status = msgspec.json.decode((self.path / "status.json").read_bytes(), type=Status)
        except FileNotFoundError:
            return Status(state="lost", pid=0, attempt=0, cause="the controller never started")
        if status.state == "running" and (gone := self._why_gone(status)) is not None:
            status.state = "lost"
            status.cause = gone
        return status

    def _why_gone(self, status: Status) -> str | None:
        """Return why nobody runs this run although its status says so; None: somebody does."""
        process = status.process
        if process is None:
            return None if is_alive(status.pid) else _VANISHED
        if process.is_on_this_system:
            return None if process.is_alive_here else _VANISHED
        if process.host == socket.gethostname():
            return "its machine was started again meanwhile"
        # On another machine: its controller touches the lock every few seconds.
        with contextlib.suppress(OSError):
            silent_s = time.time() - (self.path / LOCK).stat().st_mtime
            if silent_s < _SILENT_S:
                return None
        return f"nothing has been heard of its controller on {process.host} for a minute or longer"

    def request_workers(self, num_workers: int) -> None:
        """Request this number of workers from the controller of a running run."""
        write_atomically(self.path / "workers.request", str(num_workers).encode())

    def requested_workers(self) -> int | None:
        """Return the number of workers requested since the start, if any."""
        try:
            return int((self.path / "workers.request").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def write_summary(self, summary: Summary) -> None:
        """Replace the summary atomically."""
        write_atomically(self.path / "summary.json", encode_pretty(summary))

    def write_distribution(self, distribution: Distribution) -> None:
        """Write the partition of samples over workers."""
        # On one line: the rows are many numbers, and people read them through a command.
        write_atomically(self.path / "distribution.json", msgspec.json.encode(distribution))

    def write_predictions(self, verdicts: PartPredictions) -> None:
        """Write the predicted class of every test sample."""
        write_atomically(self.path / "predictions.json", msgspec.json.encode(verdicts))

    def read_predictions(self) -> PartPredictions | None:
        """Read the predicted class of every test sample, if it was kept."""
        return read_if_there(self.path / "predictions.json", PartPredictions)

    def read_distribution(self) -> Distribution | None:
        """Read the partition of samples, if the job distributes them."""
        return read_if_there(self.path / "distribution.json", Distribution)

    def read_summary(self) -> Summary | None:
        """Read the summary; None if the run has none."""
        return read_if_there(self.path / "summary.json", Summary)


def _overwrite(path: Path, content: bytes) -> None:
    """Overwrite the first block of an existing file, which needs no free space."""
    try:
        with path.open("r+b") as file:
            file.write(content)
            file.truncate()
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", path=str(path)) from error


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read a record from a JSON file. StoreError: it is missing or damaged; names the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(f"cannot read {path}: {error}", path=str(path)) from error


def read_if_there(path: Path, kind: type[Record]) -> Record | None:
    """Read a record from a JSON file, if there is one."""
    return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None


def encode_pretty(value: object) -> bytes:
    """Encode indented JSON for files that people open."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def list_runs(root: Path) -> list[RunDir]:
    """List all run directories below `root`, oldest first."""
    if not root.is_dir():
        return []
    found = [RunDir(path) for path in root.iterdir() if (path / "manifest.json").is_file()]
    return sorted(found, key=lambda run: (run.path / "manifest.json").stat().st_mtime)


def find_run(root: Path, name: str) -> RunDir:
    """Find a run by path, by name, by unique prefix of the name, or `last`."""
    if (Path(name) / "manifest.json").is_file():
        return RunDir(Path(name))
    runs = list_runs(root)
    if name == "last" and runs:
        return runs[-1]
    matches = [run for run in runs if run.name == name] or [
        # Every name begins with an empty one.
        run
        for run in runs
        if name and run.name.startswith(name)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(run.name for run in matches[:5])
        raise SpecError(f"run '{name}' could be any of {names}; write more of the name")
    raise SpecError(f"no run '{name}' in {root}; `phalanx runs list` shows what is there")
