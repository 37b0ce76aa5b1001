"""torchdata's StatefulDataLoader: its state, saved in the middle of an epoch, goes on where it was."""

from torchdata.stateful_dataloader import StatefulDataLoader

from frameworks.numbered import NAME, Seen, main
from stager_client.torch import StagedDataset


def resumed() -> None:
    read_in_two(workers=0)


def resumed_with_workers() -> None:
    read_in_two(workers=2)


def read_in_two(workers: int) -> None:
    seen, data = Seen(), StagedDataset(NAME)
    loader = StatefulDataLoader(data, 10, shuffle=True, num_workers=workers)
    batches = iter(loader)
    for _ in range(2):
        seen.add(0, *next(batches))
    state = loader.state_dict()
    loader = StatefulDataLoader(data, 10, shuffle=True, num_workers=workers)
    loader.load_state_dict(state)
    for epoch in range(2):
        for images, labels in loader:
            seen.add(epoch, images, labels)
    seen.save()


if __name__ == "__main__":
    main(resumed, resumed_with_workers)
