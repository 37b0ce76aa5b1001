"""What opening many samples costs a training process: python -m bench.scale_client CLASSES"""

import json
import sys
import time
from typing import Any

from bench.peers.common import memory_mb
from stager_client.torch import StagedDataset


def opened(**options: Any) -> tuple[StagedDataset, float, float]:
    """The data set, and what opening it took, the least of five times: seconds, and of CPU."""
    took = []
    for _ in range(5):
        data = None  # let go of, before it is opened again
        began, cpu = time.perf_counter(), time.process_time()
        data = StagedDataset("data", **options)
        took.append((time.perf_counter() - began, time.process_time() - cpu))
    assert data is not None
    return data, *min(took)


def main() -> None:
    _, part_s, _ = opened(classes=min(100, int(sys.argv[1])))
    before_mb = memory_mb()["anonymous"]
    data, all_s, all_cpu_s = opened()
    after_mb = memory_mb()["anonymous"]
    session = data.samples.session
    order = {
        **data.samples.version,
        "manifest": data.samples.manifest_digest,
        "subset": data.samples.subset.to_json(),
    }
    order |= {"shuffle": True, "seed": 1, "epoch": 0, "rank": 0, "world_size": 1, "drop_last": False}
    began = time.perf_counter()
    session.read_in_order({**order, "length": len(data), "start": 0})
    session.wait_until_told(60)
    told = {
        "open_100_s": part_s,
        "open_s": all_s,
        "open_cpu_s": all_cpu_s,
        "client_mb": after_mb - before_mb,
        "order_told_s": time.perf_counter() - began,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
