"""Train on a staged data set with DistributedDataParallel: python examples/train_ddp.py DATASET --processes 2

It starts the processes itself, on this machine; or start it with `torchrun --nproc-per-node 2`. Each process
reads its own part of each epoch (its rank is torch.distributed's), and all share what is staged.
"""

import argparse
import os
import tempfile
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from stager_client.torch import StagedDataset, StagedLoader


def small_net(classes: int) -> nn.Module:
    """Three convolutions, for a CPU. Put your own network here."""
    layers: list[nn.Module] = [nn.AvgPool2d(4)]  # pixels enough for this network; a real one takes them all
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def train(options: argparse.Namespace) -> None:
    """Train in one of the processes; torch.distributed knows which."""
    torch.manual_seed(options.seed)
    data = StagedDataset(options.dataset, classes=options.classes, seed=options.seed)
    loader = StagedLoader(data, options.batch_size, shuffle=True, seed=options.seed)
    model = DistributedDataParallel(small_net(len(data.classes)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(options.epochs):
        began = time.perf_counter()
        sums = torch.zeros(3)  # loss, right, seen
        for images, labels in loader:
            optimizer.zero_grad()
            scores = model(images.float() / 127.5 - 1)
            loss = nn.functional.cross_entropy(scores, labels)
            loss.backward()
            optimizer.step()
            right = (scores.argmax(1) == labels).sum()
            sums += torch.tensor([loss.item() * len(labels), right, len(labels)])
        distributed.all_reduce(sums)
        (mean, share, _), seen = (sums / sums[2]).tolist(), sums[2].item()
        if distributed.get_rank() == 0:
            rate = seen / (time.perf_counter() - began)
            print(f"epoch {epoch}: loss {mean:.3f}, {share:.0%} right, {rate:,.0f} samples/s", flush=True)


def start(rank: int, options: argparse.Namespace, meeting: str) -> None:
    """Join the others, train, and leave."""
    torch.set_num_threads(max(1, torch.get_num_threads() // options.processes))
    distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=options.processes)
    train(options)
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", help="a data set of stager.toml, or one that was prefetched by URL")
    parser.add_argument("--classes", type=int, help="this many classes, drawn by the seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started us
        distributed.init_process_group("gloo")
        train(options)
        distributed.destroy_process_group()
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(start, (options, f"{folder}/meeting"), options.processes)


if __name__ == "__main__":
    main()
