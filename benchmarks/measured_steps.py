"""The cost of measuring every layer in a training step.

    python -m benchmarks.measured_steps [--config=configs/lm.py] [--repeats 20]

Compiles the plain step and those with `train.log_norms`, `train.log_attention` and both, for a batch of the
config, and calls them in turn. Time is processor time, on which other work on the machine has little
influence. "of a step" is the median, over the rounds, of the ratio to the plain step of the same round, with
the quartiles; "of training" is what that adds to all steps at `log_every = 10`. "FLOPs" and "bytes" are those
of the compiled programs, by XLA's count, relative to the plain step.
"""

import argparse
import statistics
import tempfile
import time

from benchmarks import common

OPTIONS = {
    "plain": (),
    "log_norms": ("log_norms",),
    "log_attention": ("log_attention",),
    "both": ("log_norms", "log_attention"),
}


def main() -> None:
    """Parses flags, measures, prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/lm.py")
    parser.add_argument("--repeats", type=int, default=20)
    flags, overrides = parser.parse_known_args()

    import jax

    from transformer.run_folder import RunFolder
    from transformer.training.extras.measured import make
    from transformer.training.step import CompiledStep
    from workdir.opening import open_to_train

    steps, states, counts, seconds = {}, {}, {}, {name: [] for name in OPTIONS}
    changes = [tuple(text.removeprefix("--config.").split("=", 1)) for text in overrides]
    with tempfile.TemporaryDirectory() as folder:
        for name, keys in OPTIONS.items():
            on = [(f"train.{key}", "true") for key in keys]
            run = open_to_train(RunFolder(folder), [*changes, *on], flags.config, False, ())
            with run.placed():
                batch = run.put(next(run.loader.iterate(0)))
                step = CompiledStep(run.jitted(), run.compiler_options)
                if keys:
                    step = make(run, step, 0).measured
                state, _ = step(run.first_state(), batch)
                states[name], steps[name] = jax.block_until_ready(state), step
                counts[name] = step.compile().cost_analysis()
    print(common.machine(), flush=True)
    with run.placed():
        for _ in range(flags.repeats):
            for name, step in steps.items():
                start = time.process_time()
                states[name], metrics = step(states[name], batch)
                jax.block_until_ready((states[name], metrics))
                seconds[name].append(time.process_time() - start)
    rows: list[dict[str, object]] = []
    for name, times in seconds.items():
        ratios = [own / plain for own, plain in zip(times, seconds["plain"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "step": name,
                "FLOPs": f"{counts[name]['flops'] / counts['plain']['flops']:.3f}",
                "bytes": f"{counts[name]['bytes accessed'] / counts['plain']['bytes accessed']:.3f}",
                "processor ms": f"{1000 * statistics.median(times):.0f}",
                "of a step": f"{middle:.3f} ({low:.3f} to {high:.3f})",
                "of training": f"{(middle - 1) / 10:+.2%}",
            }
        )
    print(common.table(rows))


if __name__ == "__main__":
    main()
