"""A writer that keeps values until they can be written."""

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping

from transformer.training.checkpoints.storage import reason
from transformer.training.logging.writers import Writer


@dataclasses.dataclass
class RetryingWriter:
    """A writer that keeps what it cannot write, and writes it with the next values: a full disk or a tracker
    that does not answer is not a reason to stop training. `say` reports where that starts and ends."""

    _writer: Writer
    _say: Callable[[str], None]
    _kept: deque[tuple[int, Mapping[str, float]]] = dataclasses.field(default_factory=deque)
    _failed: bool = False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the values, after those that are kept."""
        self._kept.append((step, values))
        try:
            while self._kept:
                self._writer.write(*self._kept[0])
                self._kept.popleft()
        except OSError as error:
            if not self._failed:
                name, since = type(self._writer).__name__, self._kept[0][0]
                self._say(
                    f"{name}: values since step {since} cannot be written ({reason(error)}) and are kept"
                )
            self._failed = True
        else:
            if self._failed:
                self._say(f"{type(self._writer).__name__}: all values are written again")
            self._failed = False

    def close(self) -> None:
        """Tries once more, closes the writer, and reports what is lost."""
        if self._kept:
            step, values = self._kept.pop()
            self.write(step, values)
        if self._kept:
            self._say(f"{type(self._writer).__name__}: values since step {self._kept[0][0]} are lost")
        self._writer.close()
