"""Train on segments of clips, to tell speakers apart: python examples/train_audio.py DATASET

First, once: `python examples/audio_clips.py FOLDER` for clips to try it on, and in stager.toml

    [datasets.speakers]
    source = "FOLDER"
    [datasets.speakers.recipe]
    kind = "audio"
    rate = 16000

Of each clip another segment is read in each epoch, and no other byte of it. What is not staged yet is staged
when it is read.
"""

import argparse
import time

import torch
from torch import nn

from stager_client.torch import GridSegments, RandomSegment, StagedDataset, StagedLoader
from stager_client.voxceleb import SpeakerOrder


def spectra(segments: torch.Tensor) -> torch.Tensor:
    """(clips, samples) of int16 to (clips, bands, times)."""
    waves = segments.float() / 32_768
    found = torch.stft(waves, 512, 160, window=torch.hann_window(512), return_complex=True)
    return found.abs().square().add(1e-6).log()[:, :128]


def small_net(speakers: int) -> nn.Module:
    """For a CPU. Put your own network here."""
    layers: list[nn.Module] = [nn.BatchNorm1d(128)]
    for inputs, outputs in ((128, 64), (64, 64)):
        layers += [nn.Conv1d(inputs, outputs, 5, 2, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, speakers))


@torch.no_grad()
def share_right(model: nn.Module, data: StagedDataset) -> float:
    """Of the clips, by the mean score of four segments of each."""
    model.eval()
    right = 0
    for segments, labels in StagedLoader(data, 16, cut=GridSegments(4, seconds=1.0)):
        scores = model(spectra(segments.flatten(0, 1))).unflatten(0, segments.shape[:2]).mean(1)
        right += int((scores.argmax(1) == labels).sum())
    return right / len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", help="a data set of stager.toml with a recipe of the kind audio")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--speakers", type=int, default=4, help="in a batch, none of them twice")
    options = parser.parse_args()

    torch.manual_seed(0)
    data = StagedDataset(options.dataset)
    order = SpeakerOrder(data.targets, nPerSpeaker=2, batch_size=options.speakers)
    loader = StagedLoader(data, 2 * options.speakers, order=order, cut=RandomSegment(seconds=1.0))
    model = small_net(len(data.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        model.train()
        began, seen = time.perf_counter(), 0
        for segments, labels in loader:
            loss = nn.functional.cross_entropy(model(spectra(segments)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - began)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:,.0f} segments/s", flush=True)
    print(f"{share_right(model, data):.0%} of {len(data)} clips are told right")


if __name__ == "__main__":
    main()
