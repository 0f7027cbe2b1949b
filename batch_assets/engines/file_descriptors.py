"""How many connections this process may hold open. The limit is the operating system's, `ulimit -n`."""

import resource

import psutil

from batch_assets.core.errors import ConfigError

RESERVE = 64
"""Files that the store, logs and subprocesses may need beside what is open already."""

FEWEST = 8


def claim_descriptors(wanted: int, name: str) -> int:
    """Return how many of `wanted` connections can be open at once, after raising the soft limit if it is too low.

    ConfigError, which begins with `name`, where these are fewer than FEWEST: then nothing would work.
    """
    used = psutil.Process().num_fds() + RESERVE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < used + wanted:
        soft = used + wanted if hard == resource.RLIM_INFINITY else min(used + wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - used)
    if most < min(FEWEST, wanted):
        raise ConfigError(
            f"{name}: this process may open {soft} files, and {used} are needed beside connections to the server: "
            f"raise the limit (`ulimit -n {used + wanted}`) or ask fewer at once (max_in_flight in models.yaml)"
        )
    return most
