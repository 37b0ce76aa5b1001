"""Hugging Face accelerate: prepare() of a DataLoader and of a StagedLoader, in one process and in two."""

from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from frameworks.net import loss_of, small_net
from frameworks.numbered import NAME, Seen, main
from stager_client.torch import StagedDataset, StagedLoader


def dataset() -> None:
    train(DataLoader(StagedDataset(NAME), 10, shuffle=True))


def loader() -> None:
    train(StagedLoader(StagedDataset(NAME), 10, shuffle=True))


def train(data: Any) -> None:
    accelerator = Accelerator(cpu=True)
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, data = accelerator.prepare(net, optimizer, data)
    seen = Seen(accelerator.process_index)
    for epoch in range(2):
        for images, labels in data:
            optimizer.zero_grad()
            accelerator.backward(loss_of(net, images, labels))
            optimizer.step()
            seen.add(epoch, images, labels)
    accelerator.wait_for_everyone()
    seen.save()


if __name__ == "__main__":
    main(dataset, loader)
