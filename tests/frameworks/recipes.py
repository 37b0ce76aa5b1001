"""The Python of docs/FRAMEWORKS.md, run piece by piece, with a small network in the place of yours."""

import os
import re
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"
# torchrun's, of one rank
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

import torch
from torch import nn

from frameworks.numbered import CLASSES

PAGE = Path(__file__).parents[2] / "docs/FRAMEWORKS.md"


class Net(nn.Sequential):
    """Any size of image will do."""

    def __init__(self) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, CLASSES))


class HuggingFaceModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.net(pixel_values / 255), labels)}


def main() -> None:
    known: dict[str, Any] = {"loss_of": nn.functional.cross_entropy}
    pieces = re.findall(r"(?m)^## ([^\n]+)\n|^```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    heading, ran = "", 0
    for title, code in pieces:
        heading = title or heading
        if code:
            print(f"recipes: {heading}", flush=True)
            known |= {"net": Net(), "hf_model": HuggingFaceModel()}
            exec(compile(code, f"{PAGE.name}, {heading}", "exec"), known)  # noqa: S102
            ran += 1
    assert ran > 9


if __name__ == "__main__":
    main()
