"""Train a small network with JAX on a staged data set: python examples/train_jax.py DATASET --classes 10

What is not staged yet is staged when it is read. Pixels go to the device as uint8.
"""

import argparse
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from stager_client.numpy import StagedArrays

Params = dict[str, Any]
NHWC = ("NHWC", "HWIO", "NHWC")


def small_net(key: jax.Array, classes: int) -> Params:
    """Three convolutions, for a CPU. Put your own network here."""
    widths = (3, 16, 32, 64)
    keys = jax.random.split(key, len(widths))
    kernels = [
        jax.random.normal(one, (3, 3, inputs, outputs)) * (2 / (9 * inputs)) ** 0.5
        for one, inputs, outputs in zip(keys, widths, widths[1:], strict=False)
    ]
    return {"kernels": kernels, "head": jax.random.normal(keys[-1], (widths[-1], classes)) * 0.1}


def scores_of(params: Params, images: jax.Array) -> jax.Array:
    x = images[:, ::4, ::4].astype(jnp.float32) / 127.5 - 1  # few pixels: for a small network
    for kernel in params["kernels"]:
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=NHWC)
        x = jax.nn.relu((x - x.mean((0, 1, 2))) / (x.std((0, 1, 2)) + 1e-5))
    return x.max((1, 2)) @ params["head"]


def loss_of(params: Params, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    scores = scores_of(params, images)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1)
    return -chosen.mean(), (scores.argmax(1) == labels).mean()


@partial(jax.jit, donate_argnums=(0, 1))
def step(params: Params, momentum: Params, images: jax.Array, labels: jax.Array) -> tuple[Any, ...]:
    (loss, right), slopes = jax.value_and_grad(loss_of, has_aux=True)(params, images, labels)
    momentum = jax.tree.map(lambda old, new: 0.9 * old + new, momentum, slopes)
    params = jax.tree.map(lambda value, change: value - 0.02 * change, params, momentum)
    return params, momentum, loss, right


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", help="a data set of stager.toml, or one that was prefetched by URL")
    parser.add_argument("--classes", type=int, help="this many classes, drawn by the seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()

    loader = StagedArrays(
        options.dataset, options.batch_size, classes=options.classes, subset_seed=options.seed,
        shuffle=True, seed=options.seed, drop_last=True,  # one shape: one compilation
    )  # fmt: skip
    params = small_net(jax.random.key(options.seed), len(loader.classes))
    momentum = jax.tree.map(jnp.zeros_like, params)
    for epoch in range(options.epochs):
        began, told = time.perf_counter(), []
        for images, labels in loader:
            params, momentum, *now = step(params, momentum, images, labels)
            told.append(now)
        loss, right = jnp.array(told).mean(0)  # waits for the device
        rate = len(told) * options.batch_size / (time.perf_counter() - began)
        print(f"epoch {epoch}: loss {loss:.3f}, {right:.0%} right, {rate:,.0f} samples/s", flush=True)


if __name__ == "__main__":
    main()
