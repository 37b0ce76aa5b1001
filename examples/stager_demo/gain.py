"""What staging gains: the same samples from S3, as people read them, and staged."""

import io
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stager_demo.images import IMAGES_A_CLASS, key_of
from stager_demo.saying import say, tell

if TYPE_CHECKING:
    from stager_demo.s3server import S3Server

STAGED_CLASSES, SEED = 10, 42
EPOCHS, BATCH, WORKERS = 3, 128, (0, 2)
DIRECT, STAGED = "S3, boto3 + Pillow", "staged"
Rates = dict[tuple[str, str], list[float]]  # (data path, loaded by) -> samples/s of each epoch


class DirectDataset:
    """What people do: a GET by boto3 for each sample, then Pillow decodes, resizes and crops."""

    def __init__(self, s3: "S3Server", classes: Sequence[str]) -> None:
        self.endpoint_url, self.bucket = s3.endpoint_url, s3.public_bucket
        self.samples = [
            (key_of(name, number), label)
            for label, name in enumerate(classes)
            for number in range(IMAGES_A_CLASS)
        ]
        self._client: Any = None
        self._client_pid = 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import numpy as np
        import torch
        from PIL import Image

        key, label = self.samples[index]
        if self._client_pid != os.getpid():  # not to be shared with forked workers
            self._client, self._client_pid = anonymous_client(self.endpoint_url), os.getpid()
        body = self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        image = Image.open(io.BytesIO(body)).convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BILINEAR)
        left, top = round((image.width - 224) / 2), round((image.height - 224) / 2)
        pixels = np.array(image.crop((left, top, left + 224, top + 224)))
        return torch.from_numpy(pixels).permute(2, 0, 1), label


def anonymous_client(endpoint_url: str) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=endpoint_url, region_name="us-east-1", config=config)


def staged_dataset() -> Any:
    from stager_client.torch import StagedDataset

    return StagedDataset("shapes", classes=STAGED_CLASSES, seed=SEED)


def measure_both(s3: "S3Server") -> Rates:
    """Samples/s of each epoch, by data path and by how it is loaded."""
    from stager_client.torch import StagedLoader

    tell(f"{EPOCHS} epochs of loading, without a model: the same samples, from S3 and staged.")
    direct = DirectDataset(s3, staged_dataset().classes)
    check_they_agree(direct, staged_dataset())
    rates: Rates = {}
    for path, make in ((DIRECT, lambda: direct), (STAGED, staged_dataset)):
        for workers in WORKERS:
            how = f"DataLoader, {workers} workers"
            rates[path, how] = measure(f"{path}, {how}", data_loader(make(), workers))
    data = staged_dataset()
    loader = StagedLoader(data, BATCH, shuffle=True, seed=SEED)
    rates[STAGED, "StagedLoader"] = measure(f"{STAGED}, StagedLoader", loader)
    data.flush()  # counts are sent once a second; the next step shows them
    return rates


def check_they_agree(direct: DirectDataset, staged: Any) -> None:
    """A comparison is worth something only if both sides give the same."""
    some = range(0, len(staged), 101)
    pairs = [(direct[number], staged[number]) for number in some]
    worst = max((ours[0].float() - theirs[0].float()).abs().mean().item() for ours, theirs in pairs)
    same_labels = all(ours[1] == theirs[1] for ours, theirs in pairs)
    if len(direct) != len(staged) or not same_labels or worst > 0.05:
        sys.exit(f"demo: the two data sets are not the same (pixels differ by {worst:.3f} of 255)")
    say(f"Labels and pixels agree (of {len(some)} samples, none differs by more than {worst:.3f} of 255).")


def data_loader(data: Any, workers: int) -> Any:
    import torch
    from torch.utils.data import DataLoader

    order = torch.Generator().manual_seed(SEED)
    return DataLoader(
        data, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0, generator=order
    )


def measure(name: str, loader: Any) -> list[float]:
    """Samples/s of each epoch; the first one includes the start of the workers."""
    say(f"{name}: {EPOCHS} epochs ...")
    rates = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        seen = sum(len(labels) for _, labels in loader)
        rates.append(seen / (time.perf_counter() - began))
    return rates


def show_rates(rates: Rates) -> None:
    from rich.console import Console
    from rich.table import Table

    tell(f"Samples/s: batches of {BATCH}, {os.cpu_count()} cores, the S3 server on the same machine.")
    table = Table("data", "loaded by", box=None, pad_edge=False)
    for epoch in range(EPOCHS):
        table.add_column(f"epoch {epoch}", justify="right")
    for (path, how), row in rates.items():
        table.add_row(path, how, *(f"{rate:,.0f}" for rate in row))
    Console().print(table)


def show_gain(rates: Rates, staging_s: float) -> None:
    """The best of each side, over all epochs."""
    loaders = {path: {how: overall(row) for (p, how), row in rates.items() if p == path} for path, _ in rates}
    direct = max(loaders[DIRECT].values())
    staged = max(rate for how, rate in loaders[STAGED].items() if how.startswith("DataLoader"))
    threads = loaders[STAGED]["StagedLoader"]
    tell(
        f"From S3 {direct:,.0f} samples/s; staged {staged:,.0f} in a DataLoader ({staged / direct:.0f} x),"
        f" {threads:,.0f} by StagedLoader ({threads / direct:.0f} x)."
    )
    samples = STAGED_CLASSES * IMAGES_A_CLASS
    say(f"An epoch from S3 takes {samples / direct:.1f} s, every time. Staging took {staging_s:.1f} s, once.")


def overall(rates: Sequence[float]) -> float:
    """Samples/s over all epochs together."""
    return len(rates) / sum(1 / rate for rate in rates)
