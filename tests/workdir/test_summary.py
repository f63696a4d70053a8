"""What is said at the end of training."""

from types import SimpleNamespace

import pytest

from workdir.summary import measured


@pytest.mark.parametrize(("skipped", "lines"), [(0, 0), (3, 1)])
def test_skipped_steps_are_told(skipped, lines):
    """The loss is that of the parameters before them, and finite."""
    latest = SimpleNamespace(values={"eval/loss": 5.5, "train/skipped_steps": skipped})
    config = SimpleNamespace(train=SimpleNamespace(steps=4))
    experiment = SimpleNamespace(result_lines=lambda found: [])
    run = SimpleNamespace(latest=latest, config=config, experiment=experiment)
    told = [*measured(run, None, logged=False)]
    assert len(told) == lines and all(line.startswith("3 of 4 steps were skipped: ") for line in told)
