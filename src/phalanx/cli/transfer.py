"""Show the progress of transfers, and copy what commands write to a URL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def transfer_bars(console: Console) -> Iterator[Callable[[str, int, int], None]]:
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


@contextmanager
def written_to(place: str) -> Iterator[Path]:
    """Yield a path to write a file to; one for a URL is copied there when the block has ended.

    Raises:
        StoreError: The store cannot be written; what was there is as it was.
    """
    from phalanx.spec.urls import is_url, last_name, local_path
    from phalanx.store.url_store import store_and_name

    here = local_path(place) if is_url(place) else Path(place)
    if here is not None:
        yield here
        return
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        path = Path(folder) / last_name(place)
        yield path
        store, name = store_and_name(place)
        try:
            store.put(path, name)
        finally:
            store.close()
