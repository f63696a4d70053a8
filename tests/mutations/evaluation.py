"""Mutations of `transformer/evaluation`: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "transformer/evaluation/classification.py": (
        "tests/evaluation/test_classification.py",
        {
            "windows_by_sigmoid": ("p = jax.nn.softmax(logits", "p = jax.nn.sigmoid(logits"),
            "padding_is_a_window": ("(weights.reshape(-1) > 0).astype", "(weights.reshape(-1) >= 0).astype"),
            "parts_of_texts_weigh_one": ("jnp.asarray(shares_n))", "jnp.asarray(shares_n > 0))"),
            "loss_of_the_prediction": ("log_p, labels[:, None], axis=-1", "log_p, found[:, None], axis=-1"),
        },
    ),
}
