"""YAML as people write it for us: `models.yaml` and the heads of prompt files. A key that comes twice is an error."""

from collections.abc import Hashable
from pathlib import Path
from typing import cast

import yaml

from batch_assets.core.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys and says nothing: the first one's values would go unseen."""


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, object]:
    seen: set[Hashable] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue  # what `<<` brings in may be overridden, as everywhere in YAML
        key = cast("object", loader.construct_object(key_node, deep=True))
        if isinstance(key, Hashable) and key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} comes twice", key_node.start_mark)
        if isinstance(key, Hashable):
            seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def check_yaml(path: Path) -> None:
    """Raise ConfigError if a file that others will read is no YAML, or if a key comes twice in it."""
    try:
        for _ in yaml.load_all(path.read_text(encoding="utf-8-sig"), Loader=_Loader):
            pass
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise ConfigError(f"{path}: not YAML: {e}") from e


def load_yaml(text: str, where: str) -> object:
    """Return what the one document in `text` says. Raises ConfigError, which begins with `where`."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as e:  # ValueError: a date such as 2026-13-45
        raise ConfigError(f"{where} not YAML: {e}") from e
