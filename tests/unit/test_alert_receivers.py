"""The receivers behind apprise URLs: names without secrets, long messages, and logs that quote no token."""

import logging

import pytest
from apprise import OverflowMode
from apprise.logger import logger

from batch_assets.core.errors import ConfigError
from batch_assets.dagster.sensors.alert_receivers import check_alert_urls

MAIL = "mailto://user:s3cr3t-pass@gmail.com"
SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
TELEGRAM = "tgram://123456789:abcdefg_hijklmnop/12315544/"
HOOK = "json://127.0.0.1:9/s3cr3t-hook?+X-Token=s3cr3t%20header"


def test_no_urls_are_no_receivers() -> None:
    assert check_alert_urls([]) == []


def test_a_receiver_is_named_by_its_place_and_kind_and_shows_nothing_else() -> None:
    found = check_alert_urls([MAIL, SLACK, TELEGRAM, HOOK])
    assert [r.name for r in found] == ["1 (mailto)", "2 (slack)", "3 (tgram)", "4 (json)"]
    assert len({r.digest for r in found}) == 4
    shown = f"{found}"
    for secret in ("s3cr3t", "T1JJ3T3L2", "TIiajkdnlazkcOXrIdevi7FQ", "abcdefg_hijklmnop", "gmail"):
        assert secret not in shown


def test_a_receiver_keeps_its_digest_wherever_it_stands_in_the_setting() -> None:
    first, second = check_alert_urls([HOOK, MAIL])
    again = check_alert_urls([MAIL, HOOK])
    assert [r.digest for r in again] == [second.digest, first.digest]


@pytest.mark.parametrize(("place", "urls"), [(1, ["nonsense", HOOK]), (2, [HOOK, "nosuchservice://s3cr3t"])])
def test_a_wrong_url_is_named_by_its_place(place: int, urls: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        check_alert_urls(urls)
    assert str(raised.value).startswith(f"BATCH_ASSETS_ALERT_URLS: URL {place} of 2 isn't one that apprise understands")
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "mode"), [(HOOK, OverflowMode.TRUNCATE), (f"{HOOK}&overflow=split", OverflowMode.SPLIT)]
)
def test_a_long_message_is_cut_unless_the_url_says_otherwise(url: str, mode: OverflowMode) -> None:
    [found] = check_alert_urls([url])
    assert found.service.overflow_mode is mode


def test_what_apprise_logs_quotes_no_part_of_a_url(caplog: pytest.LogCaptureFixture) -> None:
    check_alert_urls([HOOK, SLACK])
    caplog.set_level(logging.DEBUG)
    logger.addHandler(caplog.handler)  # as whoever wants to see these logs would
    try:
        logger.warning("can't post to %s, nor with %s", "/S3CR3T-hook", "s3cr3t header")
        logger.error("An invalid Slack Token (TIiajkdnlazkcOXrIdevi7FQ) was specified.")
        logger.debug("JSON POST URL: http://127.0.0.1:9/anything")
    finally:
        logger.removeHandler(caplog.handler)
    told = {r.getMessage() for r in caplog.records}
    assert told == {"can't post to /***, nor with *** ***", "An invalid Slack Token (***) was specified."}
