"""The run directory: the only thing that outlives a run, and the only hand-over after launch.

    <name>-<date>-<time>-<4 hex>/
      manifest.json        what was asked, on what, with which versions
      manifest-N.json      the same before attempt N+1 changed the job
      status.json          running, finished, failed or interrupted, with the cause
      summary.json         what it came to
      events/              one append-only log per process
      logs/                what each process printed
      checkpoints/         the newest few and the best
      servers/             what parameter servers last wrote down
      distribution.json    which worker owned which samples, if the job distributes them
      predictions.json        the class that the model gave each test sample, for some data
      profile/             operator times of profiled epochs, one file per worker

Copying the directory moves everything; deleting it loses nothing but this run.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from pathlib import Path

import msgspec
import psutil

from phalanx.errors import SpecError, StoreError
from phalanx.records.distribution import Distribution
from phalanx.records.predictions import PartPredictions
from phalanx.records.summary import Summary
from phalanx.store.atomic import write_atomically

# Characters; with it a status fits into one block of any file system.
_SHORT_CAUSE = 200


class Status(msgspec.Struct, kw_only=True):
    """Where a run stands; written at every change of state."""

    state: str  # running, finished, failed, interrupted
    pid: int
    attempt: int
    cause: str | None = None
    rank: int | None = None


class RunDir:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: Path, name: str) -> RunDir:
        """Make a new, empty run directory below `root`."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        path = root / f"{name}-{stamp}-{secrets.token_hex(2)}"
        try:
            for part in ("events", "logs", "checkpoints"):
                (path / part).mkdir(parents=True)
        except OSError as error:
            raise StoreError(
                f"cannot create the run directory {path}: {error.strerror}; "
                "choose another place with --runs",
                path=str(path),
            ) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run directory."""
        if not (path / "manifest.json").is_file():
            raise SpecError(f"{path} is not a run directory: it has no manifest.json")
        return cls(path)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoints"

    def events_path(self, process: str) -> Path:
        """The event log of a process such as `worker-0` or `controller`."""
        return self.path / "events" / f"{process}.jsonl"

    def profile_path(self, process: str) -> Path:
        """The operator times of a process."""
        return self.path / "profile" / f"{process}.json"

    def write_status(self, status: Status) -> None:
        """Replace the status in one stroke, or on a full disk in the room of the old one."""
        path = self.path / "status.json"
        try:
            write_atomically(path, msgspec.json.encode(status))
        except StoreError:
            if not path.exists():
                raise
            status.cause = (status.cause or "")[:_SHORT_CAUSE] or None
            _overwrite(path, msgspec.json.encode(status))

    def read_status(self) -> Status:
        """The status, corrected to `lost` if it says running but its controller is gone."""
        try:
            status = msgspec.json.decode((self.path / "status.json").read_bytes(), type=Status)
        except FileNotFoundError:
            return Status(state="lost", pid=0, attempt=0, cause="the controller never started")
        if status.state == "running" and not _is_alive(status.pid):
            status.state = "lost"
            status.cause = "the controller vanished without a word"
        return status

    def request_workers(self, num_workers: int) -> None:
        """Ask the controller of a running run for so many workers."""
        write_atomically(self.path / "workers.request", str(num_workers).encode())

    def requested_workers(self) -> int | None:
        """How many workers were asked for since the start, if that was asked."""
        try:
            return int((self.path / "workers.request").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def write_summary(self, summary: Summary) -> None:
        """Replace the summary in one stroke."""
        write_atomically(self.path / "summary.json", encode_pretty(summary))

    def write_distribution(self, distribution: Distribution) -> None:
        """Say which worker owns which samples."""
        # On one line: the rows are many numbers, and people look at it through a command.
        write_atomically(self.path / "distribution.json", msgspec.json.encode(distribution))

    def write_predictions(self, verdicts: PartPredictions) -> None:
        """Keep what the model said about every test sample."""
        write_atomically(self.path / "predictions.json", msgspec.json.encode(verdicts))

    def read_predictions(self) -> PartPredictions | None:
        """What the model said about every test sample, if that was kept."""
        path = self.path / "predictions.json"
        return (
            msgspec.json.decode(path.read_bytes(), type=PartPredictions) if path.exists() else None
        )

    def read_distribution(self) -> Distribution | None:
        """Which worker owned which samples, if the job said so."""
        path = self.path / "distribution.json"
        return msgspec.json.decode(path.read_bytes(), type=Distribution) if path.exists() else None

    def read_summary(self) -> Summary | None:
        """The summary, or nothing if the run never came to one."""
        path = self.path / "summary.json"
        return msgspec.json.decode(path.read_bytes(), type=Summary) if path.exists() else None


def _overwrite(path: Path, content: bytes) -> None:
    """Put short content where a file already has its first block; needs no free space."""
    try:
        with path.open("r+b", buffering=0) as file:
            file.write(content)
            file.truncate()
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", path=str(path)) from error


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not yet waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def encode_pretty(value: object) -> bytes:
    """JSON for files that people open."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def list_runs(root: Path) -> list[RunDir]:
    """All run directories below `root`, oldest first."""
    if not root.is_dir():
        return []
    found = [RunDir(path) for path in root.iterdir() if (path / "manifest.json").is_file()]
    return sorted(found, key=lambda run: (run.path / "manifest.json").stat().st_mtime)


def find_run(root: Path, name: str) -> RunDir:
    """A run by path, by name, by unique beginning of the name, or `last`."""
    if (Path(name) / "manifest.json").is_file():
        return RunDir(Path(name))
    runs = list_runs(root)
    if name == "last" and runs:
        return runs[-1]
    matches = [run for run in runs if run.name == name] or [
        run for run in runs if run.name.startswith(name)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(run.name for run in matches[:5])
        raise SpecError(f"run '{name}' could be any of {names}; write more of the name")
    raise SpecError(f"no run '{name}' in {root}; `phalanx runs list` shows what is there")
