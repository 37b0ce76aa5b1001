"""Train a small network on a staged data set: python examples/train_torch.py DATASET --classes 10

It asks for the same subset as `stager prefetch DATASET --classes 10` stages. What is not staged yet is
staged when it is read, so it also works without a prefetch: the first epoch is then slower.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

from stager_client.torch import StagedDataset


def small_net(classes: int) -> nn.Module:
    """Three convolutions, for a CPU. Put your own network here."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader
) -> tuple[float, float]:
    """One pass over the data. Return the mean loss, and the part of the samples it got right on the way."""
    model.train()
    loss_sum = right = seen = 0.0
    for images, labels in loader:
        few = images[:, :, ::4, ::4]  # pixels enough for this network; a real one takes them all
        scores = model(few.float() / 127.5 - 1)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(labels)
        right += (scores.argmax(1) == labels).sum().item()
        seen += len(labels)
    return loss_sum / seen, right / seen


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", help="a data set of stager.toml, or one that was prefetched by URL")
    parser.add_argument("--classes", type=int, help="this many classes, drawn by the seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="processes that load; warm data needs none")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    data = StagedDataset(options.dataset, classes=options.classes, seed=options.seed)
    loader = DataLoader(data, options.batch_size, shuffle=True, num_workers=options.workers)
    model = small_net(len(data.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    print(f"{len(data):,} samples of {len(data.classes)} classes: {', '.join(data.classes[:5])} ...")
    for epoch in range(options.epochs):
        began = time.perf_counter()
        loss, right = train_epoch(model, optimizer, loader)
        seconds = time.perf_counter() - began
        print(
            f"epoch {epoch}: loss {loss:.3f}, {right:.0%} right, {len(data) / seconds:,.0f} samples/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
