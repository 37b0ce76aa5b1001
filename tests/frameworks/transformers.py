"""The Trainer of Hugging Face transformers: with StagedDataset, and with a StagedLoader of its own."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments

from frameworks.net import loss_of, small_net
from frameworks.numbered import NAME, Seen, main
from stager_client.torch import StagedDataset, StagedLoader

Inputs = dict[str, torch.Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> Inputs:
        return {"loss": loss_of(self.net, pixel_values, labels)}


class Recorded(Trainer):
    """Trainer, which tells what it trains with."""

    seen: Seen

    def training_step(self, model: nn.Module, inputs: Inputs, *more: Any) -> torch.Tensor:
        self.seen.add(int(self.state.epoch or 0), inputs["pixel_values"], inputs["labels"])
        return super().training_step(model, inputs, *more)


def together(samples: list[Any]) -> Inputs:
    images, labels = default_collate(samples)
    return {"pixel_values": images, "labels": labels}


class Batches:
    """A StagedLoader's batches as Trainer wants them."""

    def __init__(self, loader: StagedLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Inputs]:
        for images, labels in self.loader:
            yield {"pixel_values": images, "labels": labels}


class StagedTrainer(Recorded):
    def get_train_dataloader(self) -> Any:
        return Batches(StagedLoader(StagedDataset(NAME), 10, shuffle=True))


def dataset() -> None:
    train(Recorded(Net(), arguments(), train_dataset=StagedDataset(NAME), data_collator=together))


def loader() -> None:
    train(StagedTrainer(Net(), arguments()))


def arguments() -> TrainingArguments:
    return TrainingArguments(
        "trained", num_train_epochs=2, per_device_train_batch_size=10, use_cpu=True,
        remove_unused_columns=False, save_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip


def train(trainer: Recorded) -> None:
    trainer.seen = Seen(trainer.args.process_index)
    trainer.train()
    trainer.seen.save()


if __name__ == "__main__":
    main(dataset, loader)
