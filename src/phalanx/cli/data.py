"""`phalanx data`: which data sets there are, getting their files, and looking into one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.distribute import distribute
from phalanx.errors import SpecError

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.data.catalogue import Entry

app = typer.Typer(
    help="List, download, inspect and partition data sets.",
    no_args_is_help=True,
)
app.command("distribute")(distribute)

DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Data directory [default: $PHALANX_DATA]."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.command("list")
def list_datasets(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show the built-in data sets, and which of them are there."""
    from phalanx.cli.screen import open_console
    from phalanx.cli.settings import data_root
    from phalanx.data.catalogue import CATALOGUE

    root = data_root(data)
    rows = [_facts(entry, root) for entry in CATALOGUE.values()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    _print_list(open_console(), rows)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A built-in data set, such as mnist.")],
    origin: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Copy from this directory, not the internet."),
    ] = None,
    data: DataOption = None,
) -> None:
    """Get the files of a data set, verified, from their official place or from a directory."""
    from phalanx.cli.screen import open_console
    from phalanx.cli.settings import data_root
    from phalanx.data.fetch import copy_from, download

    entry = _entry(name)
    console = open_console()
    if not entry.needs_files:
        console.print(f"{name} comes with Phalanx; there is nothing to fetch.", soft_wrap=True)
        return
    root = data_root(data)
    with _progress_bars(open_console(stderr=True)) as on_progress:
        if origin is None:
            paths = download(entry, root=root, on_progress=on_progress)
        else:
            paths = copy_from(entry, origin, root=root, on_progress=on_progress)
    size_mb = sum(path.stat().st_size for path in paths) / 1e6
    console.print(
        f"{name}: {len(paths)} files, {size_mb:.1f} MB, verified, in {paths[0].parent}",
        soft_wrap=True,
        markup=False,
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A built-in data set, or the path of your own.")],
    data: DataOption = None,
    input_key: Annotated[str, typer.Option(help="Column or array of the inputs.")] = "x",
    target_key: Annotated[str, typer.Option(help="Column or array of the labels.")] = "y",
    as_json: JsonOption = False,
) -> None:
    """Show a data set's shapes, classes, split and statistics; decodes it if needed."""
    from phalanx.cli.screen import open_console
    from phalanx.cli.settings import cache_root, data_root
    from phalanx.data.catalogue import CATALOGUE
    from phalanx.data.pipeline import open_dataset
    from phalanx.spec import job_from_mapping

    if name not in CATALOGUE and "/" not in name and Path(name).exists():
        name = f"./{name}"
    job = job_from_mapping(
        {"data": {"name": name, "input_key": input_key, "target_key": target_key}}
    )
    dataset = open_dataset(job.data, data_root=data_root(data), cache_root=cache_root())
    facts = dataset.describe()
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    _print_dataset(open_console(), facts)


def _entry(name: str) -> Entry:
    from phalanx.data.catalogue import CATALOGUE
    from phalanx.spec.names import did_you_mean

    if name not in CATALOGUE:
        raise SpecError(
            f"unknown data set '{name}'{did_you_mean(name, tuple(CATALOGUE))} "
            f"(built in: {', '.join(CATALOGUE)})",
            name=name,
        )
    return CATALOGUE[name]


def _facts(entry: Entry, root: Path) -> dict[str, Any]:
    from phalanx.data.directory import is_present

    found = is_present(entry, root) if entry.needs_files else None
    return {
        "name": entry.name,
        "title": entry.title,
        "shape": list(entry.shape),
        "num_train": entry.num_train,
        "num_test": entry.num_test,
        "download_bytes": sum(remote.size_bytes for remote in entry.files),
        "present": not entry.needs_files or found is not None,
        "location": str(found.folder) if found is not None else None,
    }


def _print_list(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("data set", "what", "shape", "train", "test", "download", "where"):
        is_number = heading in ("train", "test", "download")
        table.add_column(heading, justify="right" if is_number else "left")
    for row in rows:
        size = row["download_bytes"]
        where = row["location"] or (
            "embedded" if row["present"] else f"not here; phalanx data fetch {row['name']}"
        )
        table.add_row(
            row["name"],
            row["title"],
            "x".join(str(length) for length in row["shape"]),
            f"{row['num_train']:,}",
            f"{row['num_test']:,}",
            f"{size / 1e6:.0f} MB" if size else "-",
            Text(where),  # as text, since a path may hold brackets
        )
    console.print(table)


def _print_dataset(console: Console, facts: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    head = Table(box=None, pad_edge=False, show_header=False)
    samples = facts["num_samples"]
    rows = {
        "data set": facts["name"],
        "from": facts["location"],
        "input": f"{tuple(facts['input_shape'])} {facts['input_type']}",
        "classes" if facts["class_counts"] else "outputs": str(facts["num_classes"]),
        "split": ", ".join(f"{count:,} {part}" for part, count in samples.items()),
        "files": str(facts["num_files"]),
        "mean": _numbers(facts["mean"]),
        "deviation": _numbers(facts["std"]),
        "cache": facts["cache"],
        "fingerprint": facts["fingerprint"][:16],
    }
    for label, value in rows.items():
        head.add_row(Text(label, style="bold"), Text(value))
    console.print(head)
    if not facts["class_counts"]:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("class", *samples):
        table.add_column(heading, justify="right")
    for number, counts in enumerate(zip(*facts["class_counts"].values(), strict=True)):
        table.add_row(str(number), *(f"{count:,}" for count in counts))
    console.print()
    console.print(table)


def _numbers(values: list[float], most: int = 6) -> str:
    text = ", ".join(f"{value:.4g}" for value in values[:most])
    return text + (f", ... ({len(values)} in all)" if len(values) > most else "")


@contextmanager
def _progress_bars(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar per file; yields the callback that moves them."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeLeft())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def on_progress(file: str, done_bytes: int, total_bytes: int) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file, total=total_bytes or None)
            progress.update(tasks[file], completed=done_bytes, total=total_bytes or None)

        yield on_progress
