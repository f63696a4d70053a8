import contextlib
import functools
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import runs
from tests.training.toy import Loader, assert_same, setup
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.training import hooks as training_hooks
from transformer.training import parallel
from transformer.training.checkpoints import resilience
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.extras.divergence import Watch
from transformer.training.hooks import Evaluate, Hook, Profile
from transformer.training.logging.events import event_files
from transformer.training.logging.writers import MetricsFile, make_writers
from transformer.training.loop import train
from transformer.training.metrics import Meter
from transformer.training.run_config import TrainConfig

SHAPE = (2, 2, 1)


@functools.cache
def toy():
    """With an optimizer that does not magnify rounding, for the runs that are compared but for that."""
    return setup(SHAPE, ema=True, optimizer=optax.sgd(0.3, momentum=0.9))


class Record(Hook):
    def __init__(self, every, name, events, fail_at=None):
        super().__init__(every)
        self.name, self.events, self.fail_at, self.closed = name, events, fail_at, 0

    def __call__(self, step, state, metrics):
        assert int(state.step) == step
        self.events.append((self.name, step))
        if step == self.fail_at:
            raise RuntimeError("the hook failed")

    def close(self):
        self.closed += 1


class Watched(Loader):
    """Notes when a batch is asked for."""

    def __init__(self, events, **kwargs):
        super().__init__(**kwargs)
        self.events = events

    def iterate(self, start):
        for i, batch in enumerate(super().iterate(start), start):
            self.events.append(("batch", i))
            yield batch


class Memory:
    def __init__(self):
        self.lines, self.closed = [], 0

    def write(self, step, values):
        self.lines.append({"step": step, **values})

    def close(self):
        self.closed += 1


class Unsaved:
    """Checkpoints of a run that is not saved."""

    def __init__(self, folder):
        self.directory = f"{folder}/checkpoints"

    def save(self, step, state, metrics=None):
        pass

    def wait(self):
        pass

    def is_saving(self):
        return False


def run(
    steps,
    state=None,
    loader=None,
    workdir=None,
    checkpoints=None,
    writers=(),
    hooks=(),
    step=None,
    **keys,
):
    mesh, _, init, train_step = toy()
    state = init() if state is None else state
    config = TrainConfig(**{"steps": steps, "batch_size": 8, "log_every": 2, **keys})
    meter = Meter(
        tokens_per_step=8,
        learning_rate=lambda count: 0.1 * count,
        watch=Watch(config),
        skipped=int(state.skipped),
        peak_rate=lambda: 1e6 / 10,
    )
    found = types.SimpleNamespace(
        config=types.SimpleNamespace(train=config),
        loader=loader or Loader(),
        put=functools.partial(parallel.put_batch, sharding=parallel.batch_sharding(mesh)),
        placed=lambda: parallel.placed(mesh, parallel.RULES["default"]),
        folder=RunFolder(workdir or tempfile.gettempdir()),
        hooks=hooks,
    )
    with tempfile.TemporaryDirectory() as folder, found.placed():
        return train(found, state, step or train_step, meter, writers, checkpoints or Unsaved(folder))


def test_ten_steps_are_five_and_five_more_bit_for_bit(tmp_path):
    whole, reason = run(10)
    assert reason == "finished"
    _, abstract, _, _ = toy()
    with Checkpoints(tmp_path) as checkpoints:
        run(5, checkpoints=checkpoints)
    with Checkpoints(tmp_path) as checkpoints:
        loader = Loader()
        state, _ = run(10, checkpoints.restore(abstract), loader, checkpoints=checkpoints)
        assert loader.asked[0] == 5
        assert checkpoints.steps() == [10]
    assert_same(jax.device_get(whole), jax.device_get(state))


def test_evaluate_save_next_batch_step(tmp_path):
    events = []

    class Saves(Checkpoints):
        def save(self, step, state, metrics=None):
            events.append(("save", step))
            super().save(step, state, metrics)

    _, _, _, train_step = toy()

    def step(state, batch):
        events.append(("step", int(state.step)))
        return train_step(state, batch)

    with Saves(tmp_path, keep_last=9) as checkpoints:
        hooks = [Record(2, "evaluate", events), Record(0, "sample", events)]
        run(5, loader=Watched(events), checkpoints=checkpoints, hooks=hooks, step=step, checkpoint_every=2)
        assert checkpoints.steps() == [2, 4, 5]
    between = [("evaluate", 2), ("save", 2)]
    assert events == [
        *(("batch", 0), ("step", 0), ("batch", 1), ("step", 1), *between),
        *(("batch", 2), ("step", 2), ("batch", 3), ("step", 3), ("evaluate", 4), ("save", 4)),
        *(("batch", 4), ("step", 4), ("evaluate", 5), ("sample", 5), ("save", 5)),
    ]
    assert [hook.closed for hook in hooks] == [1, 1]


def test_metrics_are_read_one_step_late():
    """While nothing needs the state, step s + 1 is handed to the device before step s is read."""
    events = []
    _, _, _, train_step = toy()

    class Watching(Meter):
        def read(self, step, metrics):
            events.append(("read", step))
            super().read(step, metrics)

    def step(state, batch):
        events.append(("step", len([e for e in events if e[0] == "step"]) + 1))
        return train_step(state, batch)

    import tests.training.test_loop as module  # the same module that `run` looks `Meter` up in

    original, module.Meter = module.Meter, Watching
    try:
        module.run(5, step=step)
    finally:
        module.Meter = original
    order = "step 1, read 1"  # waited for, since compilation ends there
    order += ", step 2, step 3, read 2, step 4, read 3, step 5, read 4, read 5"
    assert ", ".join(f"{what} {step}" for what, step in events) == order


def test_values_are_those_of_the_steps(tmp_path):
    """The logged loss is the mean over its window; the evaluator sees the averaged parameters."""
    losses, seen = [], []
    _, _, _, train_step = toy()

    def step(state, batch):
        state, metrics = train_step(state, batch)
        losses.append(float(metrics["loss"].mean))
        return state, metrics

    def evaluator(params):
        seen.append(jax.device_get(params))
        return {"loss": 1.5}

    memory = Memory()
    state, _ = run(6, step=step, writers=[memory], hooks=[Evaluate(3, {"eval": evaluator})])
    by_step = {line["step"]: line for line in memory.lines}
    assert list(by_step) == [2, 3, 4, 6] and len(memory.lines) == 4
    assert memory.closed == 1
    for end in (2, 4, 6):
        assert by_step[end]["train/loss"] == pytest.approx(np.mean(losses[end - 2 : end]), rel=1e-5)
        assert by_step[end]["train/learning_rate"] == pytest.approx(0.1 * (end - 1))
        assert by_step[end]["train/skipped_steps"] == 0
        assert np.isfinite(by_step[end]["train/gradient_norm"])
    assert by_step[3] == {"step": 3, "eval/loss": 1.5}
    assert by_step[6]["eval/loss"] == 1.5
    assert_same(seen[-1], jax.device_get(state.ema))
    assert "train/seconds_to_first_step" in by_step[2] and "train/seconds_to_first_step" not in by_step[4]


def test_time_leaves_out_compilation_hooks_and_is_shared_with_waiting():
    class Slow(Loader):
        def iterate(self, start):
            for batch in super().iterate(start):
                time.sleep(0.02)
                yield batch

    _, _, _, train_step = toy()

    def step(state, batch):
        if int(state.step) == 0:
            time.sleep(0.7)  # stands for compilation
        time.sleep(0.02)
        state, metrics = train_step(state, batch)
        return jax.block_until_ready(state), metrics

    class Nap(Hook):
        def __call__(self, step, state, metrics):
            time.sleep(0.3)

    memory = Memory()
    run(9, loader=Slow(), step=step, writers=[memory], hooks=[Nap(2)], log_every=3)
    times = [line["train/seconds_per_step"] for line in memory.lines]
    assert 0.04 <= np.average(times, weights=[2, 3, 3]) < 0.15
    for line in memory.lines:
        assert line["train/tokens_per_second"] == pytest.approx(8 / line["train/seconds_per_step"])
        assert line["train/mfu"] == pytest.approx(line["train/tokens_per_second"] * 10 / 1e6)
        assert 0.1 < line["train/input_wait"] < 0.9
    assert memory.lines[0]["train/seconds_to_first_step"] > 0.7


def test_skipped_steps_are_counted_and_kept_out_of_means():
    memory = Memory()
    state, _ = run(6, loader=Loader(poison=(2, 3, 4)), writers=[memory])
    assert [line["train/skipped_steps"] for line in memory.lines] == [0, 2, 3]
    assert "train/loss" not in memory.lines[1]
    assert np.isfinite(memory.lines[2]["train/loss"])
    assert [line["train/learning_rate"] for line in memory.lines] == pytest.approx([0.1, 0.3, 0.5])
    assert int(state.skipped) == 3


def test_too_many_skipped_steps_end_the_run_with_its_state_saved(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(
            UserError,
            match=r"^train.max_skipped: .*not finite in 3 steps in a row, up to step 6; .*--step=4 ",
        ):
            run(20, loader=Loader(poison=(1, 3, 4, 5)), checkpoints=checkpoints, max_skipped=3)
        assert len(checkpoints.steps()) == 1
    run(8, loader=Loader(poison=(1, 3, 4, 5)), max_skipped=0)


def test_a_short_run_whose_steps_are_all_skipped_has_not_succeeded():
    run(3, loader=Loader(poison=(1, 2)), max_skipped=20)
    with pytest.raises(UserError, match=r"^train.max_skipped: .* 3 steps in a row, up to step 3"):
        run(3, loader=Loader(poison=(0, 1, 2)), max_skipped=20)
    run(3, loader=Loader(poison=(0, 1, 2)), max_skipped=0)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"good": "yes"}, r"^eval/good: 'yes'; expected a number$"),
        ({"good": np.ones(2)}, r"^eval/good: array.*; expected a number$"),
        (None, r"^eval: the evaluator returns None; expected numbers by name$"),
    ],
)
def test_what_is_no_number_is_named_and_the_state_is_saved(tmp_path, found, said):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UserError, match=said):
            run(4, hooks=[Evaluate(3, {"eval": lambda params: found})], checkpoints=checkpoints)
        assert checkpoints.steps() == [3]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"mine/best": "none yet"}, r"^mine/best: 'none yet'; expected a number$"),
        ([1.0], r"^the hook Wrong returns \[1.0\]; expected numbers by name$"),
    ],
)
def test_a_hook_that_returns_no_number_is_named(found, said):
    class Wrong(Hook):
        def __call__(self, step, state, metrics):
            return found

    with pytest.raises(UserError, match=said):
        run(2, hooks=[Wrong(1)])


@pytest.mark.parametrize(("best", "said"), [("eval/loss", ""), ("eval/bleu", "'eval/bleu' is not measured")])
def test_the_best_is_a_metric_of_the_evaluation_whatever_a_hook_returns_between(tmp_path, best, said):
    """A save that no evaluation belongs to, as one by the clock, has only the values of other hooks."""

    class Another(Hook):
        def __call__(self, step, state, metrics):
            return {"mine/x": 1.0}

    losses = iter((2.0, 3.0))
    hooks = [Evaluate(2, {"eval": lambda params: {"loss": next(losses)}}, best), Another(1)]
    with Checkpoints(tmp_path, keep_best=best) as checkpoints:
        expected = pytest.raises(UserError, match=said) if said else contextlib.nullcontext()
        with expected:
            run(3, hooks=hooks, checkpoints=checkpoints, checkpoint_every=1, keep_best=best, evaluate_every=1)
        assert said or checkpoints.find("best") == 2


def test_a_checkpoint_is_written_when_its_time_has_come(monkeypatch, tmp_path):
    """By a clock that is a minute later with every step: every third one, counted from the last save; bit for
    bit what follows is what would have followed."""
    _, abstract, _, train_step = toy()
    now = [0.0]

    def step(state, batch):
        now[0] += 60
        return train_step(state, batch)

    clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    for module in (training_hooks, resilience):
        monkeypatch.setattr(module, "time", clock)
    saved = {}
    for minutes, every, wanted in ((3, 0, [3, 6, 9, 10]), (3, 4, [3, 4, 7, 8, 10]), (0, 4, [4, 8, 10])):
        folder = tmp_path / f"{minutes}-{every}"
        with Checkpoints(folder, keep_last=9) as checkpoints:
            run(10, checkpoints=checkpoints, step=step, checkpoint_every=every, checkpoint_minutes=minutes)
            assert checkpoints.steps() == wanted
            saved[folder] = jax.device_get(checkpoints.restore(abstract, 10))
            resumed, _ = run(10, checkpoints.restore(abstract, wanted[0]))
            assert_same(jax.device_get(resumed), saved[folder])
    with Checkpoints(tmp_path / "mean", keep_last=9) as checkpoints:  # of checkpoints of chosen steps alone
        keys = {"checkpoint_every": 4, "keep_last": 2, "average_last": 2, "checkpoint_minutes": 1}
        run(10, checkpoints=checkpoints, step=step, **keys)
        assert checkpoints.steps() == [4, 8, 10]


def test_a_failing_hook_loses_neither_state_nor_checkpoint(tmp_path):
    _, abstract, _, _ = toy()
    memory = Memory()
    with Checkpoints(tmp_path, keep_last=5) as checkpoints:
        hooks = [Record(3, "evaluate", [], fail_at=6)]
        with pytest.raises(RuntimeError, match="the hook failed"):
            run(9, checkpoints=checkpoints, hooks=hooks, writers=[memory], checkpoint_every=2)
        assert checkpoints.steps() == [2, 4, 6]
        assert hooks[0].closed == memory.closed == 1
        resumed, _ = run(9, checkpoints.restore(abstract))
    assert_same(jax.device_get(resumed), jax.device_get(run(9)[0]))


def test_a_failing_step_loses_no_checkpoint_in_flight(tmp_path):
    _, _, _, train_step = toy()

    def step(state, batch):
        if int(state.step) == 4:
            jax.tree.map(lambda x: x.delete(), state)
            raise RuntimeError("the device failed")
        return train_step(state, batch)

    with Checkpoints(tmp_path, keep_last=5) as checkpoints:
        with pytest.raises(RuntimeError, match="the device failed"):
            run(9, checkpoints=checkpoints, step=step, checkpoint_every=2)
        assert checkpoints.steps() == [2, 4]


def test_a_signal_while_a_save_is_in_flight_ends_the_run_after_two_saves(tmp_path):
    """The one that is being written, and that of the step that was running, on storage on which each takes a
    second; a step takes 50 ms."""
    seconds, signalled, saved = 1.0, [], []

    class Slow(Checkpoints):
        begun = 0.0

        def save(self, step, *arguments):
            super().save(step, *arguments)
            if step not in saved:  # a step that is saved gets its metrics
                saved.append(step)
                self.begun = time.monotonic()

        def is_saving(self):
            return time.monotonic() < self.begun + seconds

        def wait(self):
            super().wait()
            time.sleep(max(0.0, self.begun + seconds - time.monotonic()))

    class Kill(Hook):
        def due(self, step, last):
            time.sleep(0.05)
            if step == 5:
                assert checkpoints.is_saving()
                signalled.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGTERM)
            return False

        def __call__(self, step, state, metrics):
            raise AssertionError("it is never due")

    with Slow(tmp_path) as checkpoints:
        state, reason = run(1000, checkpoints=checkpoints, hooks=[Kill()], checkpoint_every=4)
        took = time.monotonic() - signalled[0]
        assert reason == "SIGTERM" and checkpoints.steps() == [int(state.step)] == [6]
    assert saved == [4, 6] and took > seconds


def test_a_signal_saves_at_the_next_boundary_and_handlers_are_put_back(tmp_path):
    class Kill(Hook):
        def due(self, step, last):
            if step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            return False

        def __call__(self, step, state, metrics):
            raise AssertionError("it is never due")

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    memory = Memory()
    with Checkpoints(tmp_path) as checkpoints:
        state, reason = run(50, checkpoints=checkpoints, hooks=[Kill()], writers=[memory])
        assert reason == "SIGTERM"
        assert checkpoints.steps() == [int(state.step)] and int(state.step) in (4, 5)
    assert memory.lines[-1]["step"] == int(state.step)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def signalling(at, *signals):
    """The training step, under which signals come in the step of this number."""

    def step(state, batch):
        if int(state.step) == at - 1:
            for number in signals:  # a scheduler's second SIGTERM changes nothing
                os.kill(os.getpid(), number)
        return toy()[3](state, batch)

    return step


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_leaves_at_once(tmp_path, first):
    class Kill(Hook):
        def due(self, step, last):
            return step == 3

        def __call__(self, step, state, metrics):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt), Checkpoints(tmp_path) as checkpoints:
        run(50, hooks=[Kill()], checkpoints=checkpoints, step=signalling(3, first, signal.SIGTERM))
    assert time.perf_counter() - start < 5
    assert os.listdir(tmp_path) == ["3"]  # it was saved before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_a_notice_of_a_scheduler_saves_and_a_second_one_during_the_save_changes_nothing(tmp_path, number):
    class Slow(Checkpoints):
        def wait(self):
            os.kill(os.getpid(), number)
            super().wait()
            os.kill(os.getpid(), signal.SIGTERM)

    with Slow(tmp_path) as checkpoints:
        state, reason = run(50, checkpoints=checkpoints, step=signalling(3, number))
    assert reason == number.name and int(state.step) == 3
    assert os.listdir(tmp_path) == ["3"]


@pytest.mark.thorough
@pytest.mark.parametrize("ignored", [True, False])
def test_a_terminal_that_is_closed_ends_training_unless_nohup_has_it_ignored(ignored):
    program = f"""
import signal
signal.signal(signal.SIGHUP, signal.{"SIG_IGN" if ignored else "SIG_DFL"})
from transformer.training import signals
print(signal.SIGHUP in signals.SIGNALS)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=runs.ROOT, capture_output=True, text=True)
    assert done.stdout.split() == [str(not ignored)], done.stderr


@pytest.mark.parametrize("at", ["in a step", "before the hooks", "in a hook"])
@pytest.mark.parametrize("by", ["this version", "one that wrote `unmeasured`"])
def test_a_signal_saves_before_the_hooks_and_interrupted_ones_are_called_on_resuming(tmp_path, at, by):
    events, killed = [], []

    class Saves(Checkpoints):
        def save(self, step, state, metrics=None):
            if step not in self.steps():
                events.append(("save", step))
            super().save(step, state, metrics)

    def kill_once():
        if not killed:
            killed.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    class Stop(Record):
        def due(self, step, last):
            if step == 4 and at == "before the hooks":
                kill_once()
            return super().due(step, last)

        def __call__(self, step, state, metrics):
            if step == 4 and at == "in a hook":
                kill_once()
            super().__call__(step, state, metrics)
            return {"eval/loss": float(step)}

    memory = Memory()
    writers = [memory, MetricsFile(RunFolder(tmp_path), 0)]
    with Saves(tmp_path / "checkpoints", keep_best="eval/loss") as checkpoints:
        options = {"checkpoints": checkpoints, "hooks": [Stop(4, "evaluate", events)], "workdir": tmp_path}
        step = signalling(4, signal.SIGTERM) if at == "in a step" else None
        _, reason = run(8, **options, writers=writers, log_every=1, step=step)
        assert reason == "SIGTERM"
        assert events == [("save", 4), ("evaluate", 4)][: 2 if at == "in a step" else 1]
        assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]
        assert ("eval/loss" in lines(tmp_path)[-1]) == (at == "in a step")
        if by != "this version" and at != "in a step":
            (tmp_path / "unmeasured").write_text("4")
        state = checkpoints.restore(toy()[1])
        run(
            8,
            state,
            **options,
            writers=[memory, MetricsFile(RunFolder(tmp_path), int(state.step))],
            log_every=1,
        )
        assert (checkpoints.steps(), checkpoints.find("best")) == ([4, 8], 4)
    assert [event for event in events if event[0] == "evaluate"] == [("evaluate", 4), ("evaluate", 8)]
    found = lines(tmp_path)
    assert [line["step"] for line in found] == list(range(1, 9))
    assert all("train/loss" in line and ("eval/loss" in line) == (line["step"] % 4 == 0) for line in found)


def test_a_resumed_run_calls_no_hook_of_a_step_that_was_not_interrupted(tmp_path):
    """Neither where the values of hooks are there, nor where the step has no values, as in a fork."""
    _, abstract, _, _ = toy()
    events = []

    class Measure(Record):
        def __call__(self, step, state, metrics):
            super().__call__(step, state, metrics)
            return {"eval/loss": float(step)}

    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        for steps, written in ((4, True), (8, True), (12, False)):
            state = checkpoints.restore(abstract) if checkpoints.steps() else None
            if not written:
                (tmp_path / "metrics.jsonl").unlink()
            done = int(state.step) if state else 0
            options = {"hooks": [Measure(4, "evaluate", events)], "workdir": tmp_path, "log_every": 1}
            writers = [MetricsFile(RunFolder(tmp_path), done)]
            run(steps, state, checkpoints=checkpoints, writers=writers, **options)
    assert events == [("evaluate", 4), ("evaluate", 8), ("evaluate", 12)]


PROGRAM = """
    import sys, time
    import jax
    jax.config.update("jax_num_cpu_devices", 8)
    from tests.training import test_loop
    from tests.training.toy import Loader
    from transformer.run_folder import RunFolder
    from transformer.training.checkpoints.checkpoint import Checkpoints
    from transformer.training.logging.writers import make_writers

    class Slow(Loader):
        def iterate(self, start):
            for batch in super().iterate(start):
                time.sleep(0.02)
                yield batch

    workdir, steps = sys.argv[1], int(sys.argv[2])
    with Checkpoints(workdir + "/checkpoints") as checkpoints:
        abstract = test_loop.toy()[1]
        state = checkpoints.restore(abstract) if checkpoints.steps() else None
        writers = make_writers(RunFolder(workdir), 0 if state is None else int(state.step))
        state, reason = test_loop.run(
            steps, state, Slow(), checkpoints=checkpoints, writers=writers, checkpoint_every=10
        )
    print(reason, int(state.step))
"""


def launch(workdir, steps):
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(workdir), str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(workdir):
    path = workdir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.thorough
def test_sigterm_ends_a_process_in_good_order_and_the_next_one_resumes(tmp_path):
    process = launch(tmp_path, 100_000)
    deadline = time.time() + 60
    while not any(line["step"] >= 14 for line in lines(tmp_path)) and time.time() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    message, result = out.splitlines()
    stopped = int(result.split()[1])
    assert result == f"SIGTERM {stopped}" and message == f"SIGTERM: saved step {stopped} and leaving"
    assert "Traceback" not in err and len(err.replace("\r", "\n").splitlines()) < 10, "a wall of log lines"
    assert os.listdir(tmp_path / "checkpoints") == [str(stopped)]
    assert lines(tmp_path)[-1]["step"] == stopped

    with (tmp_path / "metrics.jsonl").open("a") as file:  # as a killed process leaves it
        file.write(json.dumps({"step": stopped + 3, "train/loss": 0.0}) + "\n" + '{"step": 9')
    process = launch(tmp_path, stopped + 6)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, f"finished {stopped + 6}\n"), err
    steps = [line["step"] for line in lines(tmp_path)]
    assert steps == sorted(set(steps)) and steps[-1] == stopped + 6
    assert not any(line.get("train/loss") == 0.0 for line in lines(tmp_path))


@pytest.mark.thorough
def test_profile_records_its_steps(tmp_path):
    run(6, hooks=[Profile(2, 2, tmp_path)])
    assert list(tmp_path.rglob("*.xplane.pb"))
    run(3, hooks=[Profile(2, 2, tmp_path / "short")])
    assert list((tmp_path / "short").rglob("*.xplane.pb"))


@pytest.mark.thorough
def test_a_request_in_the_folder_records_the_steps_that_follow(tmp_path, monkeypatch):
    monkeypatch.setattr(training_hooks, "LOOK_SECONDS", 0.0)
    profile = Profile(10, 0, tmp_path)
    run(12, hooks=[profile])
    assert not [*tmp_path.iterdir()]

    class Ask(Hook):
        def __call__(self, step, state, metrics):
            if step == 4:  # is noticed after step 5
                (tmp_path / "requested").touch()

    run(12, hooks=[Ask(1), profile])
    (path,) = tmp_path.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = [event["args"]["step_num"] for event in events if event.get("name") == "train"]
    assert steps == ["6", "7", "8"] and not (tmp_path / "requested").exists()


def test_a_trace_names_modules_and_leaves_out_waiting_and_calls_of_python(tmp_path):
    # Programs whose kernels have the same names are not part of what is recorded.
    others = [jax.jit(lambda x, n=n: jax.numpy.tanh(x @ x.T) @ x * n) for n in range(3)]
    for other in others:
        other(jax.numpy.ones((16, 16)))
    run(4, hooks=[Profile(2, 2, tmp_path)])
    (path,) = tmp_path.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("ph") == "X"]
    assert any(re.search(r"Linear.*Dense_0 dot_general \(", name) for name in names), names
    assert names.count("train") == 2
    assert not [name for name in names if name.startswith(("ThreadpoolListener", "end: ", "Wait for", "$"))]


def test_writers_agree(tmp_path):
    pytest.importorskip("tensorboardX")
    run(
        4,
        writers=make_writers(RunFolder(tmp_path), 0),
        hooks=[Evaluate(2, {"eval": lambda params: {"loss": 2.0}})],
    )
    assert [line["step"] for line in lines(tmp_path)] == [2, 4]
    assert event_files(tmp_path)


def test_hooks_and_evaluators_may_return_arrays_of_one_number(tmp_path):
    class Largest(Hook):
        def __call__(self, step, state, metrics):
            return {"largest": max(jnp.abs(x).max() for x in jax.tree.leaves(state.params))}

    hooks = [Evaluate(2, {"eval": lambda params: {"loss": jnp.bfloat16(2)}}), Largest(2)]
    run(2, writers=[MetricsFile(RunFolder(tmp_path), 0)], hooks=hooks)
    (line,) = lines(tmp_path)
    assert line["eval/loss"] == 2 and line["largest"] > 0


def test_what_is_no_number_is_null(tmp_path):
    writer = MetricsFile(RunFolder(tmp_path), 0)
    writer.write(1, {"eval/loss": float("nan"), "x": 1})
    writer.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "eval/loss": null, "x": 1}\n'


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"steps": 0}, r"^steps: 0; expected at least 1"),
        ({"checkpoint_minutes": -1.0}, r"^checkpoint_minutes: -1.0; expected 0 or more"),
        ({"log_every": 0}, r"^log_every: 0"),
        ({"evaluate_every": -1}, r"^evaluate_every: -1; expected 0 or more"),
        ({"writers": "csv"}, r"^writers: .csv. is none of jsonl, tensorboard"),
        ({"keep_best": "eval/loss", "checkpoint_every": 5, "evaluate_every": 2}, r"^keep_best: .*5 .*2"),
        ({"keep_best": "eval/loss", "checkpoint_every": 5}, r"^keep_best: "),
    ],
)
def test_errors_name_the_key(keys, message):
    with pytest.raises(UserError, match=message):
        TrainConfig(**{"steps": 10, "batch_size": 8, **keys})
