"""Shared code of the benchmarks: model shapes, the peak rate of the machine, and alternating runs.

Each implementation ("contestant") runs in its own process, so that the threads of one library do not disturb
the measurement of another. The processes take turns, one measured call each.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer.runtime import MALLOC


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder-only language model and its training batch."""

    num_layers: int
    d_model: int
    num_heads: int
    length: int
    batch: int
    vocab_size: int
    learning_rate: float = 1e-3

    @property
    def tokens(self) -> int:
        """Tokens of a training batch."""
        return self.batch * self.length

    def batch_of_tokens(self) -> np.ndarray:
        """Random tokens (batch, length + 1), the same for every contestant."""
        return (
            np.random.default_rng(0)
            .integers(0, self.vocab_size, (self.batch, self.length + 1))
            .astype(np.int32)
        )

    def gpt2(self, **keys: Any) -> Any:
        """Our decoder of this size as GPT-2 is: LayerNorm, GELU, learned positions, biases."""
        # Imported here, as the processes of other libraries do without JAX.
        from transformer.models.decoder import DecoderConfig

        sizes = {"d_model": self.d_model, "num_layers": self.num_layers, "num_heads": self.num_heads}
        own = {"norm": "layer", "position": "learned", "use_bias": True, "max_length": self.length}
        return DecoderConfig(**sizes, d_ff=4 * self.d_model, **own | keys)

    def training_flops(self) -> float:
        """FLOPs of a training step: 6 per matrix parameter and token, plus the products of attention."""
        matrices = 12 * self.num_layers * self.d_model**2 + self.vocab_size * self.d_model
        return self.tokens * (6 * matrices + 12 * self.num_layers * self.d_model * self.length)


SHAPES = {
    "S": Shape(num_layers=6, d_model=384, num_heads=6, length=256, batch=16, vocab_size=256),
    "M": Shape(num_layers=12, d_model=768, num_heads=12, length=512, batch=2, vocab_size=50257),
}

ACCELERATOR = Shape(12, 768, 12, length=1024, batch=16, vocab_size=50304, learning_rate=3e-4)
"""GPT-2 small with the batch of one GPU, and its vocabulary as nanoGPT rounds it up."""


SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Environment of processes that use one GPU together: by default JAX takes most of its memory for itself."""


class Contestant:
    """A process that reports when it is ready, then does one measured call for each line it reads."""

    def __init__(
        self, module: str, *arguments: str, malloc: Mapping[str, str] = MALLOC, **environment: str
    ) -> None:
        """Starts `python -m module --worker ...` and waits until it has warmed up; `malloc` as launch.py sets
        it."""
        command = [sys.executable, "-m", module, "--worker", *arguments]
        variables = {**malloc, **SHARED, **os.environ, **environment}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )
        self.seconds: list[float] = []
        self.report = json.loads(self._read())

    def measure(self) -> None:
        """Measures one call."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading says what became of it
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        self.seconds.append(float(self._read()))

    def processor_seconds(self) -> tuple[float, float]:
        """User and system time of the process so far, over all processors (Linux)."""
        with open(f"/proc/{self._process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        own, system = (int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in fields[11:13])
        return own, system

    def resident_gb(self) -> float:
        """The resident memory of the process (Linux)."""
        with open(f"/proc/{self._process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            why = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
            raise SystemExit(f"{' '.join(self._process.args)}: ended with code {code}{why}")
        return line


def serve(call: Callable[[], object], **report: object) -> None:
    """The worker's side: reports, then measures `call` for each line read; `call` must block until it is
    done."""
    call()
    report["memory_gb"] = most_gb()
    print(json.dumps(report), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        call()
        print(time.perf_counter() - start, flush=True)


def torch_device() -> str:
    """The device on which PyTorch computes: as with JAX, a GPU where there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def most_gb() -> float:
    """The most memory that this process has used until now: of the GPU, if it computes on one."""
    if torch := sys.modules.get("torch"):
        if torch.cuda.is_available():
            return torch.cuda.max_memory_allocated() / 2**30
    elif (jax := sys.modules.get("jax")) and (used := jax.devices()[0].memory_stats()):
        return used["peak_bytes_in_use"] / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def alternate(contestants: dict[str, Contestant], repeats: int) -> None:
    """Measures each in turn; the pauses let spinning threads of the other libraries go to sleep."""
    for _ in range(repeats):
        for contestant in contestants.values():
            contestant.measure()
            time.sleep(0.3)


def contest(
    module: str,
    doc: str | None,
    cases: Sequence[str],
    contestants: Mapping[str, Callable],
    work: Callable[[str, str], None],
    row: Callable[[str, str, Contestant, Contestant, float], dict[str, object]],
    measure: Callable[[str], float] = lambda case: 0.0,
    default: Sequence[str] = (),
    absent: Collection[tuple[str, str]] = (),
) -> None:
    """The main program of a benchmark: parses flags, alternates the contestants, prints a table.

    `work(name, case)` runs in the process of a contestant; `row(case, name, contestant, first, limit)`
    returns a row of the table, where `limit` is `measure(case)`, a peak rate of the machine. Contestants
    named "ours" and "plain..." always run, others with `--peer`; `--only` names some. Without `--cases` those
    of `default` run, or all. `absent` are the (name, case) that do not exist.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--cases", nargs="+", choices=cases, default=default or cases)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(contestants), help='some contestants, "ours" first')
    flags = parser.parse_args()
    if flags.worker:
        return work(*flags.worker)
    os.environ |= {**SHARED, **os.environ}  # for `measure`, in this process
    names = flags.only or [name for name in contestants if flags.peer or not is_peer(name)]
    print(machine(), flush=True)
    for number, case in enumerate(flags.cases):
        rows = []
        # The peers run with their own allocator's defaults, as their users start them.
        there = {
            name: Contestant(module, name, case, malloc={} if is_peer(name) else MALLOC)
            for name in names
            if (name, case) not in absent
        }
        alternate(there, flags.repeats)
        limit = measure(case)
        for name, contestant in there.items():
            contestant.close()
            rows.append(row(case, name, contestant, there["ours"], limit))
        print("\n".join(table(rows).splitlines()[2 if number else 0 :]), flush=True)
    return None


def is_peer(name: str) -> bool:
    """Whether a contestant of this name is another library's, with its own defaults."""
    return not name.startswith(("ours", "plain"))


def ratio(ours: Contestant, other: Contestant) -> float:
    """Speed of `ours` relative to another: the median ratio over pairs of consecutive calls."""
    return statistics.median(b / a for a, b in zip(ours.seconds, other.seconds, strict=True))


def ceiling(dtype: str, repeats: int = 7) -> float:
    """The best FLOP/s of a square matrix product on this machine, in JAX, of a size that fills the device."""
    import jax
    import jax.numpy as jnp

    size = 2048 if jax.default_backend() == "cpu" else 8192
    a = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)), dtype)
    product = jax.jit(lambda a: jnp.matmul(a, a, preferred_element_type=jnp.float32))
    product(a).block_until_ready()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        product(a).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


def machine() -> str:
    """One line on the machine and the versions."""
    import jax

    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as cpus:
            model = next(
                (line.split(":")[1].strip() for line in cpus if line.startswith("model name")), model
            )
    except OSError:
        pass
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    return f"{devices} ({model}), Python {platform.python_version()}, jax {jax.__version__}"


def gigabytes(size: float) -> str:
    """A size in GB; "-" if it is unknown."""
    return "-" if math.isnan(size) else f"{size:.2f}"


def mean(values: Sequence[float], sign: str = "", digits: int = 3) -> str:
    """The mean, and of several values half the width of its 95 % confidence interval (Student's t)."""
    from transformer.evaluation.statistics.paired_differences import interval

    low, high = interval(values, error=0.05)
    width = f" ± {(high - low) / 2:.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.{digits}f}{width}"


def table(rows: list[dict[str, object]]) -> str:
    """Rows as a Markdown table."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([str(row[name]) for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
