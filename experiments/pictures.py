"""Pictures of what a model does, drawn while it trains."""

from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np

from transformer.training.experiment import Params
from transformer.training.hooks import Hook
from transformer.training.loop import TrainConfig
from transformer.training.state import State
from transformer.training.writers import names_of, open_events
from transformer.visualization.attention import draw_attention

Look = Callable[[Params], tuple[np.ndarray, list[str], list[str]] | None]


class AttentionMaps(Hook):
    """Draws where the tokens of a text look, in its source or in the text itself:
    `workdir`/attention/<step>.png, and in TensorBoard.

    `look(params)` gives the weights (h, t, s), the tokens that look and those looked at, or None.
    """

    def __init__(self, config: TrainConfig, look: Look, workdir: Path):
        super().__init__(config.sample_every)
        self.config, self.look, self.workdir = config, look, workdir

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> None:
        """Looks on every process, and draws on the first."""
        found = self.look(state.eval_params)
        if found is None or jax.process_index():
            return
        save_picture("attention", lambda path: draw_attention(*found, path), step, self.workdir, self.config)


def save_picture(
    name: str, draw: Callable[[Path], None], step: int, workdir: Path, config: TrainConfig
) -> None:
    """Draws to `workdir`/<name>/<step>.png, and shows the picture in TensorBoard where that is written."""
    path = workdir / name / f"{step:08d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(path)
    if "tensorboard" not in names_of(config.writers):
        return
    from matplotlib.image import imread

    with open_events(workdir / "events", filename_suffix=".pictures") as writer:
        writer.add_image(name, imread(path)[..., :3], step, dataformats="HWC")
