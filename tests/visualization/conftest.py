import pytest
from matplotlib.figure import Figure


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved, as they were then."""
    seen = []
    save = Figure.savefig

    def remember(self, *args, **kwargs):
        seen.append(self)
        save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", remember)
    return seen
