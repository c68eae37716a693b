"""The console on which all tables are printed: text is text, whatever it holds."""

import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from suite.untrusted.terminal import CleanStream, clean


class PlainConsole(Console):
    """A console that reads no markup in text, and makes what steers a terminal visible; see ``terminal``."""

    def __init__(self, *, file: IO[str] | None = None, stderr: bool = False, **more: Any) -> None:  # noqa: ANN401
        stream = file or (sys.stderr if stderr else sys.stdout)
        # Now, and not when it prints: a live display puts itself before the streams.
        terminal = getattr(stream, "rich_proxied_file", stream)
        super().__init__(file=terminal, markup=False, emoji=False, highlight=False, **more)
        self._copied = stream if stderr and isinstance(stream, CleanStream) else None

    def print(self, *objects: Any, **more: Any) -> None:  # noqa: ANN401 (rich's)
        """Print as rich does, but cut no line: a command that is longer than the terminal stays whole.

        Text on standard error reaches the copy of that stream, and redrawn lines do not.
        """
        super().print(*objects, **{"crop": False, **more})
        if self._copied:
            self._copied.write_copy("".join(f"{text}\n" for text in objects if isinstance(text, str | Text)))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield segments as rich does, with their text cleaned; control segments are rich's own."""
        for segment in super().render(renderable, options):
            kept = segment.text if segment.control else clean(segment.text)
            yield segment if kept == segment.text else Segment(kept, segment.style)
