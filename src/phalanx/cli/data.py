"""Implement `phalanx data`: list, download, inspect and partition data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli import output
from phalanx.cli.distribute import EXAMPLES as DISTRIBUTE_EXAMPLES
from phalanx.cli.distribute import distribute
from phalanx.cli.options import (
    DataOption,
    FormatOption,
    JsonOption,
    argument,
    examples,
    option,
    wanted,
)
from phalanx.cli.screen import open_console
from phalanx.cli.settings import cache_root, data_root
from phalanx.data.catalogue import CATALOGUE, Entry
from phalanx.errors import SpecError
from phalanx.report.document import (
    Block,
    CellFormat,
    Column,
    Table,
    Value,
    line,
    pairs_table,
    tabulate,
    text,
)
from phalanx.report.format import format_count, shown
from phalanx.spec.data import DataSpec
from phalanx.spec.urls import is_url

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(no_args_is_help=True)
app.command("distribute", epilog=DISTRIBUTE_EXAMPLES)(distribute)

LIST_EXAMPLES = examples("phalanx data list", "phalanx data list --format csv")
FETCH_EXAMPLES = examples(
    "phalanx data fetch mnist",
    "phalanx data fetch mnist --from /media/usb/mnist",
    "phalanx data fetch s3://bucket/flowers.npz",
)
SHOW_EXAMPLES = examples(
    "phalanx data show digits",
    "phalanx data show measurements.npz --input-key images --target-key labels",
)


@app.command("list", epilog=LIST_EXAMPLES)
def list_datasets(
    data: DataOption = None, form: FormatOption = "text", as_json: JsonOption = False
) -> None:
    """List the built-in data sets, and which of them are present."""
    root = data_root(data)
    rows = [_facts(entry, root) for entry in CATALOGUE.values()]
    output.show(lambda: [_list_table(rows)], facts=lambda: rows, form=wanted(form, as_json))


@app.command(epilog=FETCH_EXAMPLES)
def fetch(
    name: Annotated[str, argument(None, "Built-in data set, such as mnist, or a URL.")],
    origin: Annotated[
        Path | None, option("DIR", "Copy from this directory instead of downloading.", "--from")
    ] = None,
    data: DataOption = None,
) -> None:
    """Download the files of a data set, or copy them from a directory, and verify them.

    Files by URL are copied to where runs on this machine look for them.
    """
    from phalanx.data.fetch import copy_from, download
    from phalanx.spec.loader import job_from_mapping

    console = open_console()
    if is_url(name):
        if origin is not None:
            raise SpecError("--from is for built-in data sets; a URL says itself where files are")
        path = fetch_by_url(job_from_mapping({"data": name}).data)
        console.print(f"{name} is in {path}", soft_wrap=True, markup=False)
        return
    entry = _entry(name)
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


@app.command(epilog=SHOW_EXAMPLES)
def show(
    name: Annotated[
        str,
        argument(
            None,
            "Built-in data set, or the path or URL of a table, .npz, .parquet or folder of images.",
        ),
    ],
    data: DataOption = None,
    input_key: Annotated[str, option(None, "Column or array that holds the inputs.")] = "x",
    target_key: Annotated[str, option(None, "Column or array that holds the labels.")] = "y",
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Show shapes, classes, split and statistics of a data set; decodes it if needed."""
    from phalanx.data.pipeline import open_dataset
    from phalanx.spec.loader import job_from_mapping

    if name not in CATALOGUE and "/" not in name and Path(name).exists():
        name = f"./{name}"
    job = job_from_mapping(
        {"data": {"name": name, "input_key": input_key, "target_key": target_key}}
    )
    dataset = open_dataset(job.data, data_root=data_root(data), cache_root=cache_root())
    facts = dataset.describe()
    output.show(lambda: _dataset_blocks(facts), facts=lambda: facts, form=wanted(form, as_json))


def fetch_by_url(data: DataSpec) -> Path:
    """Copy a data set by URL to this machine, with a progress bar; return where it is."""
    from phalanx.data.url_files import local_files

    with _progress_bars(open_console(stderr=True)) as on_progress:
        return local_files(
            data.name,
            cache_root=cache_root(),
            limit_bytes=data.copies_bytes,
            on_progress=on_progress,
        )


def _entry(name: str) -> Entry:
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


def _list_table(rows: list[dict[str, Any]]) -> Table:
    def where(row: dict[str, Any]) -> Value:
        absent = f"not here; phalanx data fetch {row['name']}"
        place = row["location"] or ("embedded" if row["present"] else absent)
        return Value(place, row["location"])

    def size(row: dict[str, Any]) -> Value:
        download = row["download_bytes"]
        return Value(f"{download / 1e6:.0f} MB" if download else "-", download)

    columns: list[tuple[Column, CellFormat[dict[str, Any]]]] = [
        (Column("name", "data set", is_text=True), lambda row: text(row["name"])),
        (Column("title", "what", is_text=True, wraps=True), lambda row: text(row["title"])),
        (
            Column("shape", "shape", is_text=True),
            lambda row: text("x".join(map(str, row["shape"]))),
        ),
        (Column("num_train", "train"), lambda row: shown(row["num_train"], format_count)),
        (Column("num_test", "test"), lambda row: shown(row["num_test"], format_count)),
        (Column("download_bytes", "download"), size),
        (Column("location", "where", is_text=True, wraps=True), where),
    ]
    return tabulate("data", rows, columns)


def _dataset_blocks(facts: dict[str, Any]) -> list[Block]:
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
    head = pairs_table("dataset", "", rows, has_header=False)
    if not facts["class_counts"]:
        return [head]
    counted = list(zip(*facts["class_counts"].values(), strict=True))
    names = facts["class_names"] or range(len(counted))
    counts = Table(
        id="classes",
        caption="",
        columns=[Column("class", "class"), *(Column(part, part) for part in samples)],
        rows=[
            [text(name), *(shown(count, format_count) for count in row)]
            for name, row in zip(names, counted, strict=True)
        ],
    )
    return [head, line(""), counts]


def _numbers(values: list[float], most: int = 6) -> str:
    text = ", ".join(f"{value:.4g}" for value in values[:most])
    return text + (f", ... ({len(values)} in all)" if len(values) > most else "")


@contextmanager
def _progress_bars(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Show one progress bar per file; yields the callback that advances them."""
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
