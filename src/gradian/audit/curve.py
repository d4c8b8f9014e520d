"""A logged series as a curve: its head and tail, its spikes, its rise and fall. Pure functions over
arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAD_TO_SIGMA = 1.4826  # median absolute deviation of a normal distribution -> its standard deviation


@dataclass(frozen=True, slots=True)
class Curve:
    """A series of finite numbers by step.

    Attributes:
        steps: int64 `[points]`, ascending. values: float64 `[points]`, finite.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, series: tuple[NDArray[np.int64], NDArray[np.float64]]) -> Curve:
        """The finite points of a logged series."""
        steps, values = series
        finite = np.isfinite(values)
        return cls(steps[finite], values[finite])

    def __len__(self) -> int:
        return len(self.values)

    @property
    def head(self) -> float:
        """Median of the first tenth (at least one point, at least three where there are 20)."""
        return float(np.median(self.values[: self._tenth]))

    @property
    def tail(self) -> float:
        """Median of the last tenth."""
        return float(np.median(self.values[-self._tenth :]))

    @property
    def change(self) -> float:
        """Tail over head, minus one: -0.4 is a fall by 40 %. 0 where the head is not positive."""
        return self.tail / self.head - 1 if self.head > 0 else 0.0

    @property
    def _tenth(self) -> int:
        return max(3 if len(self) >= 20 else 1, len(self) // 10)

    def local_median(self, least: int = 7, most: int = 101) -> NDArray[np.float64]:
        """Running median, float64 `[points]`: in a window of a twentieth of the points, from `least` to `most`.

        Beyond the ends the series is reflected.
        """
        window = min(max(least, len(self) // 20), most, 2 * len(self) - 1) | 1
        half = min(window // 2, max(0, len(self) - 1))
        padded = np.pad(self.values, half, mode="reflect") if half else self.values
        views = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
        return np.asarray(np.median(views, axis=1))

    def spikes(self, *, ratio: float, z: float, skip: float = 0.05) -> NDArray[np.int64]:
        """Positions of points far above their neighbourhood.

        A spike is more than `ratio` times the local median *and* more than `z` robust standard deviations
        above it; the first `skip` of the steps do not count, since a loss starts high.
        """
        if len(self) < 10:
            return np.array([], dtype=np.int64)
        median = self.local_median()
        residual = self.values - median
        sigma = MAD_TO_SIGMA * float(np.median(np.abs(residual - np.median(residual))))
        late = np.arange(len(self)) >= max(1, int(skip * len(self)))
        high = (self.values > ratio * median) & (residual > z * max(sigma, 1e-12)) & (median > 0)
        return np.flatnonzero(high & late)


def noise_band(values: NDArray[np.float64]) -> float:
    """How much a series of evaluations wavers, as a share of its median: twice the standard deviation of its noise.

    The noise is estimated from first differences, which a steady fall does not disturb much, and from second ones,
    which a bend does not; the smaller estimate counts, at least 1 %. A difference of k-th order has variance
    `binomial(2k, k)` times that of the noise: 2 and 6.
    """
    level = abs(float(np.median(values))) if len(values) else 0.0
    if len(values) < 3 or level == 0:
        return 0.01
    estimates = [_spread(np.diff(values)) / np.sqrt(2)]
    if len(values) >= 5:
        estimates.append(_spread(np.diff(values, n=2)) / np.sqrt(6))
    return max(0.01, 2 * float(min(estimates)) / level)


def _spread(differences: NDArray[np.float64]) -> float:
    """Robust standard deviation around the median."""
    return MAD_TO_SIGMA * float(np.median(np.abs(differences - np.median(differences))))
