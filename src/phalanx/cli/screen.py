"""Open consoles and define their colours; shared by all commands.

The four colours stay apart for every kind of colour vision (Okabe and Ito's palette), and each
comes with a distinct glyph, so that nothing is expressed by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text
from typing_extensions import override

from phalanx.errors import printable

# Wide enough for every table; a file or a pipe has no width.
_PIPE_COLUMNS = 160

TIME_GLYPHS = {"input": "▒", "compute": "█", "communication": "▓", "waiting": "░"}
TIME_STYLES = {
    "input": "#e69f00",
    "compute": "#56b4e9",
    "communication": "#cc79a7",
    "waiting": "#999999",
}
BAR_STYLE = "#56b4e9"
BAR_DONE_STYLE = "#009e73"
WARNING_STYLE = "#e69f00"


class _SafeConsole(Console):
    """Console whose texts cannot steer the terminal.

    Names, logs and errors come from other machines; only styles and rich's own controls pass.
    """

    @override
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                segment = Segment(printable(segment.text), segment.style)
            yield segment


def open_console(*, stderr: bool = False) -> Console:
    """Open a console on standard output, or on standard error."""
    console = _SafeConsole(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console = _SafeConsole(stderr=stderr, highlight=False, width=_PIPE_COLUMNS)
    return console


def open_live(console: Console, words: str) -> Live:
    """Make a display that is redrawn on request alone, and leaves nothing behind."""
    return Live(
        Text(words, "dim"),
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def time_bar(shares: Mapping[str, float], width: int) -> Text:
    """Draw shares of time as one bar, filled exactly."""
    bar = Text(no_wrap=True)
    reached, drawn = 0.0, 0
    for name, share in shares.items():
        reached += share
        # Rounding the running sum, not each part, makes the parts fill the bar without a gap.
        upto = round(width * reached)
        bar.append(TIME_GLYPHS[name] * (upto - drawn), TIME_STYLES[name])
        drawn = upto
    return bar


def time_legend() -> Text:
    """Draw the legend of time bars."""
    return Text("  ").join(
        Text(f"{glyph} {name}", TIME_STYLES[name]) for name, glyph in TIME_GLYPHS.items()
    )
