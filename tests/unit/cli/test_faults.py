from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.cli.faults import report_error, report_fault, report_usage
from phalanx.control.run_end import RunFailed
from phalanx.errors import ExitCode, SpecError


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=60, highlight=False)


def written(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def failed(tmp_path: Path, code: ExitCode, detail: str) -> RunFailed:
    return RunFailed(
        "worker-1 was killed by SIGKILL",
        process="worker-1",
        rank=1,
        detail=detail,
        exit_code=code,
        run_dir=str(tmp_path),
    )


def test_one_long_sentence_stays_on_one_line(console: Console) -> None:
    assert report_error(SpecError("word " * 40), console) is ExitCode.BAD_INPUT
    assert written(console) == ["phalanx: " + " ".join(["word"] * 40)]


def test_square_brackets_in_a_message_are_shown(console: Console) -> None:
    report_error(SpecError("give [0.5, 0.75] or [bold]"), console)
    assert written(console) == ["phalanx: give [0.5, 0.75] or [bold]"]


def test_a_failed_run_shows_last_words_logs_and_then_the_sentence(
    tmp_path: Path, console: Console
) -> None:
    detail = "\n".join(f"line {number}" for number in range(40))
    code = report_error(failed(tmp_path, ExitCode.WORKER_LOST, detail), console)
    lines = written(console)
    assert code is ExitCode.WORKER_LOST
    assert lines[0] == "last log lines of worker-1:"
    assert lines[1] == "  ... 25 lines before"
    assert lines[-3] == "  line 39"
    assert lines[-2] == f"what each process printed: {tmp_path / 'logs'}"
    assert lines[-1] == "phalanx: worker-1 was killed by SIGKILL"


def test_a_run_with_a_checkpoint_says_how_to_continue(tmp_path: Path, console: Console) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "samples-1.safetensors").touch()
    report_error(failed(tmp_path, ExitCode.WORKER_LOST, ""), console)
    assert f"phalanx train --resume {tmp_path}" in written(console)[-2]


def test_after_the_loss_of_a_machine_the_hint_says_how_to_do_without_it(
    tmp_path: Path, console: Console
) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "samples-1.safetensors").touch()
    error = failed(tmp_path, ExitCode.WORKER_LOST, "")
    error.facts |= {"lost_machine": "d", "workers_left": 3}
    report_error(error, console)
    assert written(console)[-2].endswith(f"--resume {tmp_path} --without d --workers 3")


def test_bad_input_found_by_a_worker_shows_no_traceback(tmp_path: Path, console: Console) -> None:
    report_error(failed(tmp_path, ExitCode.BAD_INPUT, "Traceback: ..."), console)
    assert written(console) == ["phalanx: worker-1 was killed by SIGKILL"]


def test_usage_errors_point_to_help(console: Console) -> None:
    assert report_usage("Missing argument 'RUN'.", "phalanx runs show", console) == 2
    assert report_usage("No command. Did you mean 'x'?", "phalanx", console) == 2
    assert written(console) == [
        "phalanx: missing argument 'RUN'; see `phalanx runs show --help`",
        "phalanx: no command. Did you mean 'x'? See `phalanx --help`",
    ]


def test_a_fault_of_phalanx_leaves_its_traceback_in_a_file(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PHALANX_DEBUG", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert report_fault(_raised(), console) is ExitCode.FAILED
    (file,) = tmp_path.glob("phalanx-fault-*.txt")
    assert "Traceback" in file.read_text()
    assert written(console) == [
        "phalanx: a fault of Phalanx itself: KeyError: 'lost'; "
        f"please report it together with {file}"
    ]


def test_debugging_shows_the_traceback(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_DEBUG", "1")
    report_fault(_raised(), console)
    assert written(console)[0] == "Traceback (most recent call last):"


def _raised() -> Exception:
    try:
        raise KeyError("lost")
    except KeyError as error:
        return error


def test_a_full_disk_shows_no_traceback_but_what_is_saved(tmp_path: Path, console: Console) -> None:
    error = failed(tmp_path, ExitCode.STORE, "Traceback: ...")
    error.facts["saved"] = "the newest checkpoint holds 1 of 2 finished epochs"
    assert report_error(error, console) is ExitCode.STORE
    assert written(console) == [
        f"what each process printed: {tmp_path / 'logs'}",
        "the newest checkpoint holds 1 of 2 finished epochs",
        "phalanx: worker-1 was killed by SIGKILL",
    ]
