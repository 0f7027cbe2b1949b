"""Who hears of alerts: any service that apprise speaks. Its secrets get into no log, error or row."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from apprise import Apprise, AppriseResultStatus, NotifyBase, NotifyFormat, NotifyType, OverflowMode

from batch_assets.core.canonical import digest_text
from batch_assets.core.errors import ConfigError
from batch_assets.store.alerts import AlertKind

VARIABLE = "BATCH_ASSETS_ALERT_URLS"
SEND_S = 10.0
"""The time that one message to one receiver may take."""
_SEPARATORS = re.compile(r"[/:@?&=,+#\s]")
_TYPES = {
    AlertKind.CHECK_FAILED: NotifyType.FAILURE,
    AlertKind.CHECK_WARNED: NotifyType.WARNING,
    AlertKind.RUN_FAILED: NotifyType.FAILURE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """One service. `name` is its place in the setting and its kind; `digest` tells it from others in the store."""

    name: str
    digest: str
    service: NotifyBase = field(repr=False)

    def send(self, kind: AlertKind, title: str, body: str) -> str | None:
        """Send one message of plain text; return what went wrong, or None if the service took it.

        A receiver that can't be reached within SEND_S counts as not having it.
        """
        result = Apprise(self.service).notify(
            body=body, title=title, notify_type=_TYPES[kind], body_format=NotifyFormat.TEXT, timeout=SEND_S
        )
        if result:
            return None
        if result.status is AppriseResultStatus.TIMEOUT:
            return f"{self.name}: no answer within {SEND_S:g} s"
        words = "; ".join(dict.fromkeys(entry.message for entry in result.logs())) or "the service refused the message"
        return f"{self.name}: {words[:500]}"


def check_alert_urls(urls: Sequence[str]) -> list[Receiver]:
    """Return the receiver behind each URL. ConfigError tells by its place which URL is wrong, and never quotes it."""
    if not urls:
        return []
    _hush(urls)
    receivers: list[Receiver] = []
    for place, url in enumerate(urls, start=1):
        service = Apprise.instantiate(url)
        if service is None:
            raise ConfigError(
                f"{VARIABLE}: URL {place} of {len(urls)} isn't one that apprise understands; "
                "https://appriseit.com/services/ lists them (in a password, write % and @ as %25 and %40)"
            )
        if "overflow=" not in url.lower():
            # A service with a limit then gets the start of a long message; it would refuse the whole.
            service.overflow_mode = OverflowMode.TRUNCATE
        scheme = url.partition("://")[0].lower()
        receivers.append(Receiver(name=f"{place} ({scheme})", digest=digest_text(url), service=service))
    return receivers


class _Scrubber(logging.Filter):
    """Takes the secrets out of what apprise logs: it quotes tokens, in its warnings too."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, scrubbed."""
        record.msg, record.args, record.exc_info = self.scrub(record.getMessage()), (), None
        return True

    def scrub(self, text: str) -> str:
        for part in sorted(self.parts, key=len, reverse=True):
            text = re.sub(re.escape(part), "***", text, flags=re.IGNORECASE)
        return text


_SCRUBBER = _Scrubber()


def _hush(urls: Sequence[str]) -> None:
    """Keep the URLs, with their secrets, out of every log; what went wrong is told by `send`."""
    for url in urls:
        _, _, rest = url.rpartition("://")
        # Any part may be a secret: a webhook's path, a query's value, and the host too, as Slack's is.
        _SCRUBBER.parts |= {p for form in (rest, unquote(rest)) for p in _SEPARATORS.split(form) if len(p) > 3}
    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    if _SCRUBBER not in logger.filters:
        logger.addFilter(_SCRUBBER)
        logger.addHandler(logging.NullHandler())
    logging.getLogger("urllib3.connectionpool").setLevel(logging.WARNING)  # DEBUG shows a webhook's path
