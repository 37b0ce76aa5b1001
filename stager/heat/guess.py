"""How often each sample is likely to be read: by its own reads, and by those of its class.

A training reads classes, not samples: of a class that is read a lot, the sample that was not drawn yet is as
likely as the others. So a sample's own heat is drawn towards the mean of its class, the more so the better
chance alone explains how its samples differ (their variance is as small as their mean). If always the same
few are read, they differ more, and their own heat counts.
"""

from typing import Final

import numpy as np

from stager.heat.heat import Floats
from stager.reader.samples.by_number import ByNumber
from stager.reader.samples.manifest import Manifest
from stager.reader.values import Numbers

CLASS_MOST: Final = 0.75  # what was read comes before what was not, in one class


class Guess:
    """The heat that the samples of a manifest will have, by their numbers."""

    def __init__(self, own: ByNumber, manifest: Manifest) -> None:
        """`own`: the heat of each sample, also of those that are not in the manifest any more."""
        self.own, self.manifest = own, manifest
        self.means = self._weights = np.zeros(0)  # of each class, and how much that counts
        # What follows from a rule is all of one class, however much there is: each counts for itself.
        if not manifest.records.is_computed:
            warm = own.used()
            labels = self.labels_of(warm)
            heat = own[warm][labels >= 0]
            self.means, self._weights = class_means(heat, labels[labels >= 0], manifest.class_sizes())

    def labels_of(self, samples: Numbers) -> Numbers:
        """The class of each sample; -1: it is in no class, or not in the manifest."""
        places = self.manifest.places_of(samples)
        labels = np.full(len(samples), -1)
        labels[places >= 0] = self.manifest.labels_at(places[places >= 0])
        return labels

    def __getitem__(self, samples: Numbers) -> Floats:
        own: Floats = self.own[samples]
        if not len(self.means):
            return own
        labels = self.labels_of(samples)
        weights = np.where(labels >= 0, self._weights[labels], 0.0)
        return np.asarray(weights * self.means[labels] + (1 - weights) * own)


def class_means(heat: Floats, labels: Numbers, sizes: Numbers) -> tuple[Floats, Floats]:
    """The mean heat of each class, and how much it says of a sample. All other samples have none."""
    count = np.maximum(sizes, 1)
    means = np.bincount(labels, heat, len(sizes)) / count
    variances = np.bincount(labels, heat * heat, len(sizes)) / count - means * means
    weights = np.minimum(CLASS_MOST, means / np.maximum(np.maximum(variances, means), np.finfo(float).tiny))
    return means, weights
