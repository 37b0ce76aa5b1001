"""A simulator, as people have one: plain Python and NumPy. What a sequence takes varies by five."""

from typing import Final

import numpy as np
import numpy.typing as npt

FRAMES, BODIES = 250, 24
STEPS: Final = (25, 125)  # of the integrator for a frame: what a sequence takes varies by five
BOX = 4.0


def sequence(index: int, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Bodies that pull at one another, 250 frames of positions: (frames, bodies, 3)."""
    rng = np.random.default_rng([seed, index])
    place, speed = rng.uniform(-1, 1, (BODIES, 3)), rng.normal(0, 0.1, (BODIES, 3))
    steps = int(rng.integers(STEPS[0], STEPS[1], endpoint=True))
    frames = np.empty((FRAMES, BODIES, 3), np.float32)
    for frame in range(FRAMES):
        for _ in range(steps):
            speed += 1e-3 * (place.mean(axis=0) - place)
            place = np.clip(place + speed / steps, -BOX, BOX)
        frames[frame] = place
    return {"pose": frames}
