"""JAX: StagedArrays into a jitted step, in one process, and in two that train together."""

import os
import socket
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from frameworks.numbered import CLASSES, NAME, SIDE, Seen, main
from stager_client.numpy import StagedArrays


def loss_of(weights: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
    scores = (images.reshape(len(images), -1) / 255) @ weights
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1).mean()


@jax.jit
def step(weights: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
    return weights - 0.1 * jax.grad(loss_of)(weights, images, labels)


def arrays() -> None:
    train()


def two_processes() -> None:
    """Each reads the part of its process, and a step is on the batches of both."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        meeting = f"127.0.0.1:{server.getsockname()[1]}"
    command = [sys.executable, "-m", "frameworks.jax", "one_of_two"]
    environ = {**os.environ, "MEETING": meeting, "RUN": Seen.run}
    started = [subprocess.Popen(command, env=environ | {"PROCESS": str(number)}) for number in range(2)]
    assert [process.wait(120) for process in started] == [0, 0]


def one_of_two() -> None:
    Seen.run = os.environ["RUN"]
    jax.distributed.initialize(os.environ["MEETING"], 2, int(os.environ["PROCESS"]))
    assert jax.process_count() == 2
    train()
    jax.distributed.shutdown()


def train() -> None:
    rank, world_size = jax.process_index(), jax.process_count()
    loader = StagedArrays(NAME, 10, shuffle=True, rank=rank, world_size=world_size)
    mesh = jax.make_mesh((world_size,), ("batch",))
    spread, same = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("batch",), ()))
    weights: Any = jax.device_put(np.zeros((SIDE * SIDE * 3, CLASSES), np.float32), same)
    seen = Seen(rank)
    for epoch in range(2):
        for images, labels in loader:
            batch = (jax.make_array_from_process_local_data(spread, array) for array in (images, labels))
            weights = step(weights, *batch)
            seen.add(epoch, images, labels)
    seen.save()


if __name__ == "__main__":
    main(arrays, two_processes, one_of_two)
