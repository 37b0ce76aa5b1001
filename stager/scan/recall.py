"""What the last scan found in an object, from its manifest: so an object is looked into once a version."""

from functools import cached_property

import numpy as np

from stager.interfaces import Entry, Recalled
from stager.reader.samples.manifest import ListedManifest
from stager.reader.samples.segments import ListedSegment
from stager.reader.values import Numbers, ObjectInfo


class Recall:
    """The entries of a manifest, by the object that they are of."""

    def __init__(self, newest: ListedManifest) -> None:
        self._manifest = newest
        place_of = np.full(len(newest.records), -1, dtype=np.int64)
        place_of[newest.numbers] = np.arange(len(newest))
        self._places: dict[ObjectInfo, Numbers] = {}
        for start, segment in newest.records.starts():
            if not isinstance(segment, ListedSegment):
                continue
            for info, rows in segment.by_object():
                places = place_of[start + rows]
                known = self._places.get(info, places[:0])
                self._places[info] = np.sort(np.concatenate([known, places[places >= 0]]))

    @cached_property
    def _objects(self) -> dict[str, ObjectInfo]:
        return {info.key: info for info, places in self._places.items() if len(places)}

    def object_of(self, key: str) -> ObjectInfo | None:
        """The object under a key, as the manifest has it; None: it has none."""
        return self._objects.get(key)

    def __call__(self, info: ObjectInfo) -> Recalled | None:
        """Nothing, if nothing was found in this version of it: then it is looked into again."""
        places = self._places.get(info)
        if places is None or not len(places):
            return None
        manifest = self._manifest
        samples = manifest.records.infos(manifest.numbers[places])
        labels, splits = manifest.labels[places].tolist(), manifest.split_of[places].tolist()
        columns = [manifest.attribute(name, places).to_pylist() for name, _ in manifest.attributes]
        entries = [
            Entry(
                sample.key,
                sample.parts,
                (manifest.splits[split], manifest.classes[label]),
                tuple(column[at] for column in columns),
                sample.at,
                sample.inputs,
            )
            for at, (sample, label, split) in enumerate(zip(samples, labels, splits, strict=True))
        ]
        return Recalled(manifest.attributes, entries)
