"""PyTorch: DataLoader, DistributedSampler, and DistributedDataParallel under torchrun."""

import atexit
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from frameworks.net import small_net, step
from frameworks.numbered import NAME, Seen, main
from stager_client.torch import StagedDataset, StagedLoader

EPOCHS = 2


def fork() -> None:
    data_loader(num_workers=2, multiprocessing_context="fork")


def spawn() -> None:
    data_loader(num_workers=2, multiprocessing_context="spawn", persistent_workers=True)


def forkserver() -> None:
    data_loader(num_workers=2, multiprocessing_context="forkserver")


def persistent() -> None:
    data_loader(num_workers=2, persistent_workers=True)


def no_workers() -> None:
    data_loader()


def data_loader(**options: Any) -> None:
    loader = DataLoader(StagedDataset(NAME), batch_size=8, shuffle=True, **options)
    train(loader, Seen())


def distributed_sampler() -> None:
    """Both ranks in one process: a sampler needs no others."""
    data = StagedDataset(NAME)
    for rank in range(2):
        sampler = DistributedSampler(data, num_replicas=2, rank=rank)
        train(DataLoader(data, 8, sampler=sampler), Seen(rank), sampler.set_epoch)


def join() -> int:
    """Meet the other ranks, and return ours. Once: a second meeting may find the addresses of the first."""
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
        atexit.register(distributed.destroy_process_group)
    return distributed.get_rank()


def ddp_dataset() -> None:
    rank, data = join(), StagedDataset(NAME)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    train(DataLoader(data, batch_size=8, sampler=sampler), Seen(rank), sampler.set_epoch)


def ddp_loader() -> None:
    rank = join()
    train(StagedLoader(StagedDataset(NAME), batch_size=8, shuffle=True), Seen(rank))


def train(
    loader: Iterable[tuple[torch.Tensor, torch.Tensor]],
    seen: Seen,
    set_epoch: Callable[[int], None] = lambda epoch: None,
) -> None:
    net = small_net()
    if distributed.is_initialized():
        net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        set_epoch(epoch)
        for images, labels in loader:
            step(net, optimizer, images, labels)
            seen.add(epoch, images, labels)
    seen.save()


if __name__ == "__main__":
    main(fork, spawn, forkserver, persistent, no_workers, distributed_sampler, ddp_dataset, ddp_loader)
