import functools
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training.toy import Loader, assert_same, setup
from transformer.errors import UserError
from transformer.training import parallel
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.checksums import compare
from transformer.training.state import State


@functools.cache
def trained(steps=2, shape=(1, 1, 1), ema=False):
    mesh, abstract, init, step = setup(shape, ema)
    state = init()
    for i in range(steps):
        batch = parallel.put_batch(Loader().batch_at(i), parallel.batch_sharding(mesh))
        with parallel.placed(mesh, parallel.RULES["default"]):
            state, _ = step(state, batch)
    return state, abstract


@pytest.mark.parametrize("ema", [False, True])
@pytest.mark.parametrize(("there", "back"), [((2, 2, 2), (1, 1, 1)), ((1, 1, 1), (1, 4, 2))])
def test_a_state_is_the_same_bits_on_another_mesh(tmp_path, there, back, ema):
    state, _ = trained(3, there, ema)
    saved = jax.device_get(state)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, state)
    _, abstract, _, _ = setup(back, ema)
    with Checkpoints(tmp_path, write=False) as checkpoints:
        restored = checkpoints.restore(abstract)
        assert_same(saved, jax.device_get(restored))
        assert isinstance(restored, State)
        kernel = restored.params["Dense_0"]["kernel"]
        assert kernel.sharding.shard_shape(kernel.shape) == (8 // back[1], 8 // back[2])
        moment = restored.opt_state[0].mu["Dense_0"]["kernel"]
        assert moment.sharding == kernel.sharding


def test_saving_in_the_background_survives_donation(tmp_path):
    """The buffers are overwritten while the checkpoint is still being written."""
    bump = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    params = {f"w{i}": jnp.full((512, 1024), float(i)) for i in range(8)}
    state = State(jnp.int32(0), params, (), None, jnp.int32(0))
    with Checkpoints(tmp_path, keep_last=9) as checkpoints:
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        for step in range(3):
            checkpoints.save(step, state)
            for _ in range(5):
                state = bump(state)
        checkpoints.wait()
        for step in range(3):
            restored = checkpoints.restore(abstract, step)
            for i in range(8):
                np.testing.assert_array_equal(restored.params[f"w{i}"], i + 5.0 * step)


def test_evaluation_reads_the_average_and_no_optimizer_state(tmp_path):
    for ema in (False, True):
        state, abstract = trained(2, ema=ema)
        directory = tmp_path / str(ema)
        with Checkpoints(directory) as checkpoints:
            checkpoints.save(2, state)
        with Checkpoints(directory, write=False) as checkpoints:
            params = checkpoints.restore_params(abstract.params)
            assert_same(params, state.eval_params)
            # An optimizer state of another kind is not an obstacle, for it is not looked at.
            other = abstract.replace(opt_state=optax.sgd(0.1, momentum=0.9).init(abstract.params))
            with pytest.raises(UserError, match="opt_state"):
                checkpoints.restore(other)


def test_the_last_and_the_best_are_kept(tmp_path):
    state, _ = trained(1)
    losses = {1: 3.0, 2: 1.0, 3: 2.0, 4: None, 5: 4.0, 6: 5.0}
    for keep_best, best, kept in (("", None, [5, 6]), ("eval/loss", 2, [2, 5, 6]), ("-eval/loss", 6, [5, 6])):
        directory = tmp_path / (keep_best.replace("/", "") or "none")
        with Checkpoints(directory, keep_last=2, keep_best=keep_best) as checkpoints:
            for step, loss in losses.items():
                checkpoints.save(step, state, {} if loss is None else {"eval/loss": loss, "eval/x": 0.0})
            checkpoints.wait()
            assert checkpoints.steps() == kept
            assert checkpoints.find("latest") == 6
            if best:
                assert checkpoints.find("best") == best
        with Checkpoints(directory, keep_best=keep_best, write=False) as checkpoints:
            assert checkpoints.steps() == kept
            if best:
                assert checkpoints.find("best") == best
            else:
                with pytest.raises(UserError, match="no checkpoint was saved with"):
                    checkpoints.find("best")


def test_what_is_no_number_is_never_the_best_and_where_nothing_was_measured_the_latest_is(tmp_path):
    state, _ = trained(1)
    for number, (losses, best) in enumerate(
        [({1: 2.0, 2: float("nan")}, 1), ({1: float("nan"), 2: 3.0}, 2), ({1: None, 2: float("nan")}, 2)]
    ):
        with Checkpoints(tmp_path / str(number), keep_last=2, keep_best="eval/loss") as checkpoints:
            for step, loss in losses.items():
                checkpoints.save(step, state, {"a_hook/x": 0.0} if loss is None else {"eval/loss": loss})
            checkpoints.wait()
            assert checkpoints.find("best") == best


def test_saving_a_step_twice_is_harmless(tmp_path):
    state, _ = trained(1)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.save(1, state)
        checkpoints.wait()
        checkpoints.save(1, state)
        assert checkpoints.steps() == [1]


def test_a_step_that_is_saved_before_it_is_measured_may_be_the_best(tmp_path):
    state, abstract = trained(1)
    with Checkpoints(tmp_path, keep_best="eval/loss") as checkpoints:
        checkpoints.save(1, state)
        for loss in (1.0, 9.0):  # the second changes nothing
            checkpoints.save(1, state, {"eval/loss": loss})
        checkpoints.save(2, state, {"eval/loss": 2.0})
        checkpoints.wait()
        assert checkpoints.find("best") == 1
        assert_same(checkpoints.restore(abstract, 1), state)
    with Checkpoints(tmp_path, keep_best="eval/loss", write=False) as checkpoints:
        assert (checkpoints.steps(), checkpoints.find("best")) == ([1, 2], 1)


def test_a_half_written_checkpoint_is_ignored_and_swept_away(tmp_path):
    program = f"""
        import os, jax.numpy as jnp
        from transformer.training.checkpoints.checkpoint import Checkpoints
        from transformer.training.state import State
        state = State(jnp.int32(1), {{"w": jnp.ones((2000, 2000))}}, (), None, jnp.int32(0))
        checkpoints = Checkpoints({str(tmp_path)!r}, keep_last=5)
        checkpoints.save(1, state)
        checkpoints.wait()
        checkpoints.save(2, state)
        while len(os.listdir({str(tmp_path)!r})) < 2:
            pass
        os._exit(9)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (9, "", "")
    assert len(os.listdir(tmp_path)) == 2, "nothing was half-written: the test shows nothing"
    with Checkpoints(tmp_path, write=False) as checkpoints:
        assert checkpoints.steps() == [1]
    assert len(os.listdir(tmp_path)) == 2
    with Checkpoints(tmp_path, keep_last=5) as checkpoints:
        assert checkpoints.find("latest") == 1
        checkpoints.save(2, trained(1)[0])
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_differences_are_listed_by_path(tmp_path):
    state, abstract = trained(1)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.wait()
        params = dict(abstract.params)
        dense = dict(params["Dense_0"])
        dense["kernel"] = jax.ShapeDtypeStruct((4, 4), jnp.float32, sharding=dense["kernel"].sharding)
        dense["scale"] = dense.pop("bias")
        with pytest.raises(UserError) as error:
            checkpoints.restore(abstract.replace(params={"Dense_0": dense}))
        with pytest.raises(
            UserError, match=r"params/Dense_0/kernel is float32\[8, 8\], here float32\[4, 4\]"
        ):
            checkpoints.restore_params({"Dense_0": dense})
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{tmp_path}/1: ")
    assert "missing: params/Dense_0/scale" in message
    assert "unexpected: params/Dense_0/bias" in message
    assert "params/Dense_0/kernel is float32[8, 8], here float32[4, 4]" in message


def test_long_differences_are_cut():
    stored = {f"layer{i}": ((2,), "float32") for i in range(20)}
    assert compare(stored, {}).endswith("layer5 and 14 more")
    assert compare(stored, stored) == ""
    assert compare({"a": ((1,), "float32")}, {"a": ((1,), "bfloat16")}) == "a is float32[1], here bfloat16[1]"


def test_missing_checkpoints_are_named(tmp_path):
    state, abstract = trained(1)
    with pytest.raises(UserError, match="there are no checkpoints"):
        Checkpoints(tmp_path / "nowhere", write=False)
    with Checkpoints(tmp_path, keep_best="eval/bleu") as checkpoints:
        with pytest.raises(UserError, match="there are no checkpoints"):
            checkpoints.restore(abstract)
        checkpoints.save(1, state)
        checkpoints.wait()
        with pytest.raises(UserError, match="no checkpoint of step 7; there are 1"):
            checkpoints.restore(abstract, 7)


def test_arrays_of_another_shape_alone_are_refused(tmp_path):
    state, abstract = trained(1)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.wait()
        kernel = abstract.params["Dense_0"]["kernel"]
        wider = jax.ShapeDtypeStruct((8, 9), jnp.float32, sharding=kernel.sharding)
        dense = dict(abstract.params["Dense_0"]) | {"kernel": wider}
        for restore in (
            lambda: checkpoints.restore(abstract.replace(params={"Dense_0": dense})),
            lambda: checkpoints.restore_params({"Dense_0": dense}),
        ):
            with pytest.raises(UserError, match=r"kernel is float32\[8, 8\], here float32\[8, 9\]"):
                restore()


def test_a_save_may_take_hours(tmp_path):
    """Of 100 GB, on a disk that writes 5 MB/s, where orbax alone ends the run after 20 minutes."""
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints._manager._options.async_options.timeout_secs >= 100e9 / 5e6
