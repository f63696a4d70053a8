"""What is whole on every device of a mesh, and what is divided."""

import math

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from experiments import find_experiment
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.training import parallel
from transformer.training.partition import check_divided, table
from transformer.training.run import Run
from workdir.opening import check_config, read_config


def divided(names, shape=(64, 64), **axes):
    """Checks a model of a divided kernel of 64 x 64 and one with logical axes `names`."""
    mesh = parallel.make_mesh(parallel.MeshConfig(**({"data": 1} | axes)))
    known = nn.LogicallyPartitioned(jax.ShapeDtypeStruct((64, 64), jnp.float32), ("embed", "mlp"))
    new = nn.LogicallyPartitioned(jax.ShapeDtypeStruct(shape, jnp.float32), names)
    boxed = {"known": {"kernel": known}, "new": {"kernel": new}}
    rules = parallel.RULES["default"]
    shardings = {
        name: {"kernel": parallel._sharding(each["kernel"], (name,), mesh, rules)}
        for name, each in boxed.items()
    }
    params = parallel.with_shardings(boxed, shardings)
    check_divided(boxed, shardings, mesh)
    return params


def parts(params):
    """How many parts the new kernel is divided into."""
    kernel = params["new"]["kernel"]
    return kernel.size // math.prod(kernel.sharding.shard_shape(kernel.shape))


def test_a_kernel_that_no_rule_divides_is_refused():
    with pytest.raises(UserError) as error:
        divided(("wide", None), fsdp=8)
    assert str(error.value) == (
        "parallel.mesh.fsdp: 50.0% of the bytes of parameters are whole on every device, most of them in "
        "new/kernel (64, 64); expected at most 2%: its logical axes have no rule"
    )
    with pytest.raises(UserError):
        divided(("wide", None), context=8)


def test_what_tensor_alone_divides_is_refused():
    with pytest.raises(UserError):
        divided(("wide", "mlp"), fsdp=4, tensor=2)


def test_what_is_small_or_meant_to_be_whole_is_not():
    assert parts(divided(("wide", None), shape=(8, 8), fsdp=8)) == 1
    assert parts(divided(("replicated", "gates"), fsdp=8)) == 1
    assert parts(divided(("embed", None), fsdp=8)) == 8


def test_tensor_and_data_divide_what_they_divide():
    assert parts(divided(("wide", None), data=8)) == 1
    assert parts(divided(("wide", None), tensor=8)) == 1
    assert parts(divided(("wide", "mlp"), tensor=8)) == 8


def test_the_table_says_how_each_parameter_is_divided():
    lines = list(table(divided(("embed", "heads"), data=2, fsdp=2, tensor=2)))
    assert [line.split() for line in lines] == [
        ["known/kernel", "(64,", "64)", "(fsdp,", "tensor)", "4,096"],
        ["new/kernel", "(64,", "64)", "(fsdp,", "tensor)", "4,096"],
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config", ["configs/transformer_xl.py", "configs/rnn_translation.py", "configs/papers/t5.py"]
)
def test_models_divide_their_kernels(config):
    overrides = [("parallel.mesh.data", "1"), ("parallel.mesh.fsdp", "8"), ("train.batch_size", "64")]
    frozen = check_config(read_config(config), overrides)
    tokenizer = Tokenizer.blank(1024)
    run = Run(find_experiment(frozen.experiment)(frozen, tokenizer=tokenizer), frozen, "nowhere")
    whole = [line for line in table(run.abstract.params) if "kernel" in line and "fsdp" not in line]
    assert all("recurrent/kernel" in line for line in whole)


def test_adapters_may_be_whole_along_their_rank():
    """Of those of all layers of a small model more than `MAX_WHOLE`: with fsdp they could not be trained."""
    overrides = [("model.lora_rank", "8"), ("model.lora_layers", ".*"), ("parallel.mesh.fsdp", "2")]
    overrides += [("parallel.mesh.data", "1"), ("optimizer.train_only", "lora")]
    config = check_config(read_config("configs/lm.py:tiny"), overrides)
    experiment = find_experiment(config.experiment)(config, tokenizer=Tokenizer.blank(256))
    _ = Run(experiment, config, "nowhere", devices=jax.devices()[:2]).abstract


def test_latent_attention_divides_the_kernels_of_its_heads():
    keys = {
        "model.mixer": "latent",
        "parallel.mesh.data": "1",
        "parallel.mesh.fsdp": "8",
        "train.batch_size": "8",
    }
    frozen = check_config(read_config("configs/lm.py"), keys.items())
    run = Run(
        find_experiment("language_modeling")(frozen, tokenizer=Tokenizer.blank(1024)), frozen, "nowhere"
    )
    whole = [line for line in table(run.abstract.params) if "kernel" in line and "fsdp" not in line]
    assert whole == []
