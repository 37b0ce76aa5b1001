"""Lightning: its Trainer with StagedDataset and with StagedLoader; alone, with DDP, and resumed."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from frameworks.net import loss_of, small_net
from frameworks.numbered import NAME, Seen, main
from stager_client.torch import StagedDataset, StagedLoader

Batch = tuple[torch.Tensor, torch.Tensor]


class Module(lightning.LightningModule):
    def __init__(self, seen: Seen | None = None) -> None:
        super().__init__()
        self.net, self.seen = small_net(), seen

    def on_fit_start(self) -> None:
        self.seen = self.seen or Seen(self.global_rank)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        assert self.seen is not None
        self.seen.add(self.current_epoch, *batch)
        return loss_of(self.net, *batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def dataset() -> None:
    fit(DataLoader(StagedDataset(NAME), 10, shuffle=True))


def loader() -> None:
    fit(StagedLoader(StagedDataset(NAME), 10, shuffle=True))


def ddp_dataset() -> None:
    """Lightning gives the DataLoader a DistributedSampler."""
    fit(DataLoader(StagedDataset(NAME), 10, shuffle=True), strategy="ddp", devices=2)


def ddp_loader() -> None:
    """The loader asks torch.distributed for its rank."""
    fit(StagedLoader(StagedDataset(NAME), 10, shuffle=True), strategy="ddp", devices=2)


def resumed() -> None:
    """The first run ends in the middle of an epoch, the second goes on from its checkpoint."""
    seen = Seen()
    trainer = trainer_of(max_steps=9, callbacks=[ModelCheckpoint("saved", "now", every_n_train_steps=9)])
    trainer.fit(Module(seen), StagedLoader(StagedDataset(NAME), 10, shuffle=True))
    assert sum(map(len, seen.epochs.values())) == 90
    again = StagedLoader(StagedDataset(NAME), 10, shuffle=True)
    trainer_of(max_epochs=3).fit(Module(seen), again, ckpt_path="saved/now.ckpt")
    seen.save()


def trainer_of(strategy: str = "auto", devices: int = 1, **options: object) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"enable_checkpointing": "callbacks" in options, **quiet, **options}
    return lightning.Trainer(accelerator="cpu", strategy=strategy, devices=devices, **options)


def fit(data: DataLoader[Batch] | StagedLoader, **options: object) -> None:
    module = Module()
    trainer_of(max_epochs=2, **options).fit(module, data)
    assert module.seen is not None
    module.seen.save()


if __name__ == "__main__":
    main(dataset, loader, ddp_dataset, ddp_loader, resumed)
