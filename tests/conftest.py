"""Eight virtual CPU devices for every test, so that sharding is tested anywhere; options of the suite."""

import argparse
import collections
import gc
import os
import re
from pathlib import Path

gc.set_threshold(200_000, 20, 50)  # before the imports: most of what they and tracing make stays
# There is a process for each core: further threads of NumPy and PyTorch would only wait.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

from collections.abc import Iterator  # noqa: E402
from typing import Any  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402
from jax._src.interpreters import mlir  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from tests import runs, seeds  # noqa: E402
from transformer import requirements  # noqa: E402

FAST_COMPILATION = (
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters --xla_cpu_parallel_codegen_split_count=1"
)
"""XLA flags that compile four times as fast: tests compile many programs and run each of them once. An
unknown flag ends the process, so every jaxlib of requirements.txt must know these; unknown extra options are
ignored."""

CORE = (
    "tests/data/test_packing.py",
    "tests/decoding/test_beam.py",
    "tests/decoding/test_sampling.py",
    "tests/layers/attention/test_kernels.py",
    "tests/planning/test_collectives.py",
    "tests/planning/test_hlo.py",
    "tests/test_launch.py",
    "tests/test_resume.py",
    "tests/training/checkpoints/test_checkpoint.py",
    "tests/training/test_step.py",
)
"""Tests marked `core`, of which CI runs the quick ones also under a second Python."""

OPTIMIZED = (
    "tests/data/test_packing.py",
    "tests/decoding/test_incremental.py::test_bfloat16_stays_near",
    "tests/decoding/test_incremental.py::test_greedy_generation_recomputed_from_nothing_each_step[rope]",
    "tests/decoding/test_sampling.py::test_a_",
    "tests/decoding/test_sampling.py::test_greedy",
    "tests/layers/attention/test_kernels.py::test_capped_scores_and_sinks",
    "tests/layers/attention/test_kernels.py::test_half_precision",
    "tests/layers/attention/test_kernels.py::test_patterns",
    "tests/layers/attention/test_kernels.py::test_segments",
    "tests/layers/attention/test_ring.py::test_a_window",
    "tests/layers/attention/test_ring.py::test_packed_segments",
    "tests/test_resume.py::test_a_signal_saves_and_the_same_command_goes_on[15]",
    "tests/training/test_precision.py",
    "tests/training/test_step.py::test_microbatches_change_nothing[4]",
    "tests/training/test_step.py::test_the_gradient",
)
"""Tests marked `optimized`, which CI runs again for some commits with full compilation, as users
run; two minutes."""

LISTS = {"core": CORE, "optimized": OPTIMIZED}
"""Mark -> the tests that have it."""


def share(text: str) -> tuple[int, int]:
    """`K/N`: the part of the files that has the number K modulo N, and N."""
    if not (match := re.fullmatch(r"(\d+)/([1-9]\d*)", text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form K/N, as in 0/4")
    number, parts = map(int, match.groups())
    return number % parts, parts


def missing_peers(file: Path = runs.ROOT / "requirements-peers.txt") -> str:
    """One line that names the packages of `file` that are missing or too old; "" if none is."""
    missing, old, _ = requirements.compare(file.read_text(encoding="utf-8").splitlines())
    found = [*requirements.listed("missing", missing), *requirements.listed("too old", old)]
    return f"--peers: {'; '.join(found)} (pip install -r {file.name})" if found else ""


class Contexts:
    """JAX's `make_ir_context`, called for every fiftieth program: registering all dialects in a new context
    takes two thirds of lowering a small program. What is lowered is the same."""

    def __init__(self, make: Any):
        self.make, self.calls, self.context = make, 0, None

    def __call__(self) -> Any:
        if self.calls % 50 == 0:  # now and then, as it holds the constants of all its programs
            self.context = self.make()
        self.calls += 1
        return self.context


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.register(seeds)
    parser.addoption("--optimized", action="store_true", help="compile with all optimisations, as users do")
    parser.addoption(
        "--peers",
        action="store_true",
        help="demand requirements-peers.txt; fail if a test is skipped because a package is not installed",
    )
    parser.addoption(
        "--share",
        type=share,
        default=(0, 1),
        metavar="K/N",
        help="run thorough tests of every Nth of their files only, from the Kth on (and all other tests)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.peers and (line := missing_peers()):
        raise pytest.UsageError(line)
    jax.config.update("jax_num_cpu_devices", 8)
    # Most of the time goes into tracing and lowering, less of it without the place of each operation in the
    # source.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
    mlir.make_ir_context = Contexts(mlir.make_ir_context)
    if not config.option.optimized:
        jax.config.update("jax_disable_most_optimizations", True)
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"  # for the processes that tests start
        os.environ["XLA_FLAGS"] = f"{FAST_COMPILATION} {os.environ.get('XLA_FLAGS', '')}"


def pytest_report_header(config: pytest.Config) -> str | None:
    number, parts = config.option.share
    return None if parts == 1 else f"thorough tests: --share={number}/{parts}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m core` and `-m optimized`, also before other marks, only the files of the list are imported."""
    chosen = LISTS.get(config.option.markexpr.partition(" ")[0])
    if chosen is None or collection_path.is_dir():
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    return None if path in {name.partition("::")[0] for name in chosen} else True


def mark_quick_cases(items: list[pytest.Item]) -> None:
    """Takes the mark from the first cases of a function of which they are quick: `thorough(but=1)`."""
    seen = collections.Counter[str]()
    for item in items:
        for mark in [mark for mark in item.own_markers if mark.name == "thorough" and "but" in mark.kwargs]:
            function = item.nodeid.partition("[")[0]
            seen[function] += 1
            if seen[function] <= mark.kwargs["but"]:
                item.own_markers.remove(mark)


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for name, chosen in LISTS.items():
            if item.nodeid.startswith(chosen):
                item.add_marker(name)
    mark_quick_cases(items)
    number, parts = config.option.share
    thorough = [item for item in items if item.get_closest_marker("thorough")]
    # Whole files, as tests of one file share the runs that they train.
    here = set(sorted({item.path for item in thorough})[number::parts])
    if left_out := {item for item in thorough if item.path not in here}:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With `--peers`, a test that was skipped because of a missing package fails the session."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.option.peers and reporter:
        skips = [report.longrepr[2] for report in reporter.stats.get("skipped", ())]
        if missing := [reason for reason in skips if "could not import" in reason]:
            reporter.write_line(f"\n--peers: tests were left out: {', '.join(sorted(set(missing)))}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="module")
def in_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs tests of whole programs in the repository's folder (see `tests.runs`)."""
    with runs.in_root(tmp_path_factory):
        yield


@pytest.fixture(scope="module")
def drawn(in_root: None) -> Iterator[None]:
    """With `in_root`: pictures are drawn, not left blank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", runs.SAVE)
        yield
