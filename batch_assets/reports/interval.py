"""Confidence intervals of shares."""

import math


def wilson_interval(hits: int, trials: int, z: float) -> tuple[float, float]:
    """Return the Wilson score interval of a share, `hits` of `trials`, at `z` standard deviations; (0, 1) of none.

    Unlike the plain normal interval it holds for few trials and for shares near 0 and 1.
    Source: E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 22, 1927.
    """
    if not trials:
        return 0.0, 1.0
    share, z2 = hits / trials, z * z
    middle = share + z2 / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    scale = 1 + z2 / trials
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
