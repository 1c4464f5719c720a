"""Kinds of bad input on the command line: one sentence, its exit code, no traceback, no run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.cli.main import run

FILES = {
    "job.yaml": "data: digits\n",
    "study.yaml": "study: x\njob: {data: digits}\naxes: {workers: [1, 2]}\n",
    "misspelt-study.yaml": "study: x\njob: {data: digits}\naxes: {workrs: [1, 2]}\n",
    "no-axes.yaml": "study: x\njob: {data: digits}\n",
    "misspelt-pool.yaml": "machines: [{hots: a}]\n",
    "empty.yaml": "",
    "comment.yaml": "# nothing\n",
    "list.yaml": "- a\n",
    "tab.yaml": "data:\n\tname: digits\n",
    "twice.yaml": "data: digits\ndata: mnist\n",
    "no-machines.yaml": "machines: []\n",
    "option.yaml": "machines: [{host: '-oProxyCommand=x'}]\n",
    "same.yaml": "machines: [a, a]\n",
    "text": "x",
    "plan.json": "{}",
    "broken.json": "{",
}
"""Of all kinds that a file can be wrong; those of other encodings are written below."""

JOB_FILES = [
    ("train empty.yaml", "empty.yaml: the file is empty"),
    ("train comment.yaml", "comment.yaml: the file is empty"),
    ("train list.yaml", "list.yaml:1: the file holds a list"),
    ("train tab.yaml", "tab.yaml:2: not valid YAML: a tab cannot indent"),
    ("train twice.yaml", "twice.yaml:2: key 'data' is given twice (first on line 1)"),
    ("train latin.yaml", "latin.yaml:1: this is not UTF-8 text"),
    ("train utf16.yaml", "utf16.yaml:1: this is not UTF-8 text"),
    ("train bytes.yaml", "this is not UTF-8 text"),
    ("train folder.yaml", "folder.yaml: this is a directory, not a file"),
    ("train .", "this is a directory, not a file"),
    ("train folder/absent.yaml", "there is no such file"),
    ("train absent/job.yaml", "there is no such"),
    ("train /dev/null", "the file is empty"),
]
OPTIONS = [
    ("train --wrkers 3", "did you mean --workers?"),
    ("train --gpus 1", "there is no option --gpus; see"),
    ("train absent.yaml", "absent.yaml: there is no such file\n"),
    (
        "train study.yaml",
        "a study file, not a job file; run it with `phalanx study run",
    ),
    ("train same.yaml", "a pool file, not a job file; name it with `--pool same.yaml`"),
    ("train job.yaml --set optimizer.rl=1", "unknown key 'rl' in optimizer (valid: clip_norm"),
    ("train job.yaml --resume last", "leave out job.yaml"),
    ("train --resume nothing", "no run 'nothing'"),
    ("train job.yaml more.yaml", "unexpected extra argument"),
    (
        "train job.yaml --workers 1e9",
        "--workers must be a valid integer, not '1e9'; see `phalanx",
    ),
    ("train job.yaml --workers -1", "workers must be a whole number from 1 to 4096, not -1"),
    ("train job.yaml --workers 99999999999999999999", "a whole number from 1 to 4096"),
    ("train job.yaml --workers 300", "300 workers would bring a machine with"),
    ("train job.yaml --epochs 0", "epochs must be a whole number above 0"),
    ("train job.yaml --seed -5", "seed must be a whole number from 0"),
    ("train job.yaml --set", "option '--set' requires an argument; see `phalanx train --help`"),
    ("train --resume", "option '--resume' requires an argument; see `phalanx train --help`"),
    ("train job.yaml --set epochs", "an override is path=value"),
    ("train job.yaml --set =3", "an override is path=value"),
    ("train job.yaml --set epochs=[", "--set epochs=[: not valid YAML"),
    ("train job.yaml --set a.b.c=1", "unknown key 'a'"),
    ("train job.yaml --set optimizer.lr=nan", "optimizer.lr must be a number above 0"),
    ("train job.yaml --set name=../../x", "name must be up to 80 of"),
    ("train job.yaml --set data=./absent.npz", "looked for beside the job file"),
    ("train job.yaml --set data=./text", "is neither a .npz, .parquet, .csv"),
    ("train job.yaml --set model=nowhere:build", "there is no module 'nowhere'"),
    ("train job.yaml --launch nothing", "unknown launcher 'nothing'"),
    ("train job.yaml --pool job.yaml", "a job file, not a pool file"),
    ("train job.yaml --select cpu", "name one with --pool"),
    ("train job.yaml --runs text", "text is no directory of runs; choose another place"),
    ("train --plan plan.json", "plan.json is no plan"),
    ("train --plan broken.json", "broken.json is no plan"),
    ("train --plan absent.json", "cannot read the plan absent.json"),
    ("train --resume .", "no run '.'"),
    ("launch", "there is no script to run"),
    ("launch absent.py", "there is no script absent.py"),
    ("launch job.yaml", "a job file, not a script; train it with `phalanx train job.yaml`"),
    ("init nothing", "unknown case 'nothing'"),
    ("dashboard --port 99999999", "--port must be less than or equal to 65535, not '99999999'"),
    ("dashboard --port x", "--port must be a valid integer, not 'x'"),
    ("dashboard --runs text --once x.html", "text is no directory of runs"),
    ("simulate job.yaml --workers 0", "--workers must be greater than or equal to 1, not '0'"),
    ("plan job.yaml --deadline soon", "takes a time such as 90min"),
    ("plan job.yaml --budget much", "--budget must be a valid number, not 'much'"),
    ("plan study.yaml", "a study file, not a job file"),
    ("doctor --nothing", "there is no option --nothing"),
    ("trian", "did you mean 'train'"),
]
RECORDS = [
    *(
        (f"{command} nothing", "no run 'nothing' in runs; `phalanx runs list` shows what is there")
        for command in ("predict", "blame", "trace", "profile", "report", "runs show")
    ),
    ("bench-inference nothing", "no run 'nothing'"),
    ("export weights nothing -o x.pt", "no run 'nothing'"),
    ("export tensorboard nothing --to x", "no run 'nothing'"),
    ("runs list --runs text", "text is no directory of runs"),
    ("study list --runs text", "text is no directory of runs"),
    ("report text", "no run 'text'"),
    ("report .", "is neither a study nor a run, and holds no runs"),
]
STUDIES_AND_POOLS = [
    ("study run absent.yaml", "absent.yaml: there is no such file"),
    ("study run misspelt-study.yaml", "misspelt-study.yaml:3: unknown key 'workrs'; did you mean"),
    ("study run no-axes.yaml", "axes is missing"),
    ("study run study.yaml --budget soon", "'soon' is no time; write 90s"),
    ("study show nothing", "no study 'nothing' in runs; `phalanx study list` shows"),
    ("study resume nothing", "no study 'nothing' in runs"),
    ("tune switch job.yaml", "needs at least 2 workers"),
    ("study run job.yaml", "a job file, not a study file; train it with `phalanx train job.yaml`"),
    ("pool show job.yaml", "a job file, not a pool file"),
    ("pool show misspelt-pool.yaml", "in machines.0; did you mean 'host'?"),
    ("pool show absent.yaml", "there is no such file"),
    ("pool show no-machines.yaml", "a pool needs at least one machine"),
    ("pool show option.yaml", "'-oProxyCommand=x' is no host"),
    ("pool show same.yaml", "machines 1 and 2 have the same address 'a'"),
    ("data show nothing", "unknown data 'nothing'"),
    ("data show ./absent.npz", "there is no file or folder './absent.npz'"),
    ("data fetch nothing", "unknown data set 'nothing'"),
    ("data distribute job.yaml", "set 'data.distribution'"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.yaml").write_bytes("name: café\n".encode("latin-1"))
    (tmp_path / "utf16.yaml").write_bytes("data: digits\n".encode("utf-16"))
    (tmp_path / "bytes.yaml").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PHALANX_FORK_SERVER", "off")
    monkeypatch.delenv("PHALANX_RUNS", raising=False)
    return tmp_path


def refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> str:
    """Call the command in this process; it must refuse with code 2, one sentence and no run."""
    monkeypatch.setattr(sys, "argv", ["phalanx", *arguments])
    with pytest.raises(SystemExit) as ended:
        run()
    output, errors = capfd.readouterr()
    assert ended.value.code == 2, errors
    assert output == ""
    assert errors.startswith("phalanx: ")
    assert errors.count("\n") == 1
    assert not Path("runs").exists()
    return errors


@pytest.mark.parametrize(
    ("command", "sentence"), [*JOB_FILES, *OPTIONS, *RECORDS, *STUDIES_AND_POOLS]
)
def test_one_sentence_says_what_is_wrong(
    command: str,
    sentence: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert sentence.lower() in refused(command.split(), monkeypatch, capfd).lower()


def test_an_empty_name_is_no_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Although every name begins with it."""
    (place / "elsewhere" / "only").mkdir(parents=True)
    (place / "elsewhere" / "only" / "manifest.json").write_text("{}")
    arguments = ["runs", "show", "", "--runs", "elsewhere"]
    assert "no run ''" in refused(arguments, monkeypatch, capfd)


@pytest.mark.parametrize("variable", ["PHALANX_RUNS", "argument"])
def test_names_that_no_record_can_hold_are_refused(
    variable: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(b"caf\xe9")
    arguments = ["runs", "list"]
    if variable == "argument":
        arguments += ["--runs", name]
    else:
        monkeypatch.setenv(variable, name)
    assert "is not UTF-8; rename" in refused(arguments, monkeypatch, capfd)


def test_a_folder_of_another_encoding_or_one_that_is_gone_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = place / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert "is not UTF-8; rename" in refused(["doctor"], monkeypatch, capfd)
    folder.rmdir()
    assert "the current folder no longer exists" in refused(["doctor"], monkeypatch, capfd)


@pytest.mark.parametrize(
    ("redirection", "code", "sentence"),
    [
        (">/dev/full", 6, "phalanx: cannot use the output: No space left on device\n"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
    ],
)
def test_an_output_that_takes_nothing(
    redirection: str, code: int, sentence: str, place: Path
) -> None:
    command = f"{sys.executable} -m phalanx.cli.main train job.yaml --dry-run {redirection}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=place, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (code, sentence)
