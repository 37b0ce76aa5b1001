"""All runs: of which framework, what is run, in how many processes, and how it is started."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Run:
    """One function of one file of this folder."""

    file: str
    function: str
    package: str  # whose version is told
    what: str
    ranks: int = 1
    by: tuple[str, ...] = ()  # the module that starts it, and its arguments
    is_alone: bool = False  # it starts its other ranks itself, by its own command line


TORCHRUN: Final = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")

PYTORCH: Final = (
    Run("pytorch", "no_workers", "torch", "DataLoader, no workers"),
    Run("pytorch", "fork", "torch", "DataLoader, 2 forked workers"),
    Run("pytorch", "spawn", "torch", "DataLoader, 2 spawned workers, persistent"),
    Run("pytorch", "forkserver", "torch", "DataLoader, 2 workers of a forkserver"),
    Run("pytorch", "persistent", "torch", "DataLoader, 2 forked workers, persistent"),
    Run("pytorch", "distributed_sampler", "torch", "DataLoader with DistributedSampler", 2),
    Run("pytorch", "ddp_dataset", "torch", "torchrun, DDP, DataLoader with DistributedSampler", 2, TORCHRUN),
    Run("pytorch", "ddp_loader", "torch", "torchrun, DDP, StagedLoader", 2, TORCHRUN),
)

RUNS: Final = (
    *PYTORCH,
    Run("lightning", "dataset", "lightning", "Trainer, DataLoader of StagedDataset"),
    Run("lightning", "loader", "lightning", "Trainer, StagedLoader"),
    Run("lightning", "resumed", "lightning", "Trainer, StagedLoader, resumed in the middle of an epoch"),
    Run(
        "lightning", "ddp_dataset", "lightning", "Trainer, DDP, DataLoader of StagedDataset", 2, is_alone=True
    ),
    Run("lightning", "ddp_loader", "lightning", "Trainer, DDP, StagedLoader", 2, is_alone=True),
    Run("accelerate", "dataset", "accelerate", "prepare() of a DataLoader of StagedDataset"),
    Run("accelerate", "loader", "accelerate", "prepare() of a StagedLoader"),
    Run("accelerate", "dataset", "accelerate", "prepare() of a DataLoader, under torchrun", 2, TORCHRUN),
    Run("accelerate", "loader", "accelerate", "prepare() of a StagedLoader, under torchrun", 2, TORCHRUN),
    Run("transformers", "dataset", "transformers", "Trainer, StagedDataset"),
    Run("transformers", "loader", "transformers", "Trainer, StagedLoader"),
    Run("transformers", "dataset", "transformers", "Trainer, StagedDataset, under torchrun", 2, TORCHRUN),
    Run("transformers", "loader", "transformers", "Trainer, StagedLoader, under torchrun", 2, TORCHRUN),
    Run("torchdata", "resumed", "torchdata", "StatefulDataLoader, resumed in the middle of an epoch"),
    Run("torchdata", "resumed_with_workers", "torchdata", "the same with 2 workers"),
    Run("keras", "dataset", "keras", "fit(), on torch, DataLoader of StagedDataset"),
    Run("keras", "arrays", "keras", "fit(), on torch, StagedArrays as a generator"),
    Run("jax", "arrays", "jax", "a jitted step, StagedArrays"),
    Run("jax", "two_processes", "jax", "two processes that train together, StagedArrays", 2),
    Run("ipython", "loader", "ipython", "StagedLoader: break, Ctrl-C, and again"),
)
