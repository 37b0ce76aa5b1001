"""All workloads, in the order of the page."""

from typing import Final

from bench.workloads.audio import AUDIO
from bench.workloads.boxes import BOXES
from bench.workloads.generated import GENERATED
from bench.workloads.memo import MEMO
from bench.workloads.tars import TARS
from bench.workloads.volumes.disk import DISK
from bench.workloads.volumes.volumes import VOLUMES
from bench.workloads.workload import Workload

_ALL: Final[tuple[Workload, ...]] = (BOXES, AUDIO, GENERATED, MEMO, TARS, VOLUMES, DISK)
WORKLOADS: Final = {workload.section.name: workload for workload in _ALL}
