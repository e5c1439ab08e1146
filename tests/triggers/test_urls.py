"""The public part of a URL, and how the trigger that requests the URL gets it back complete."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow import masked_url, masked_urls
from aioflow_triggers.pages import with_credentials, without_credentials

CANARY = "c4n4ry"
words = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
secrets = words.map(lambda text: f"{text}{CANARY}{text}")


@given(user=secrets, password=secrets, value=secrets, path=words, raw=st.booleans())
def test_no_password_and_no_value_of_a_query_is_shown(user, password, value, path, raw):
    how = (lambda text: text.translate(dict.fromkeys(map(ord, "/?#@\\")))) if raw else quote
    user, password, value = (how(text).replace("/", "") for text in (user, password, value))
    query = value.replace("&", "").replace(";", "")
    url = f"https://{user}:{password}@bank.example/{quote(path)}?token={query}&{query}=1#{value}"
    url = url.replace(f"&{query}=1", "")

    assert CANARY not in masked_url(url)
    assert masked_url(url).startswith(f"https://bank.example/{quote(path)}?token=***")


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("https://h", "https://h"),
        ("https://h:8443/a/@b?page=2&q", "https://h:8443/a/@b?page=***&***"),
        ("https://me@h/a;b#part", "https://h/a;b"),
        ("abfss://files@account.dfs/x", "abfss://files@account.dfs/x"),
        ("abfss://files:key@account.dfs/x?sig=1", "abfss://account.dfs/x?sig=***"),
        ("s3://bucket/folder/*.csv", "s3://bucket/folder/*.csv"),
        ("/in/a?b.csv", "/in/a?b.csv"),
    ],
)
def test_the_rest_of_it_stays(url, masked):
    assert masked_url(url) == masked
    text = f"GET {url} : it said 'no', see <{url}>"
    assert masked_urls(text) == f"GET {masked} : it said 'no', see <{masked}>"


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://h/a?page=2", "https://h/a?page=2"),
        ("https://h/a?token=x&cursor=c%2F1", "https://h/a?token=***&cursor=c%2F1"),
        ("https://u:p@h/a?cursor=x", "https://***@h/a?cursor=x"),
        ("https://other/a?token=y", "https://other/a?token=y"),
    ],
)
def test_the_stored_part_of_a_page_url_leads_back_to_it(url, kept):
    own = "https://u:p@h/a?token=x&page=1"

    assert without_credentials(url, own) == kept
    assert with_credentials(kept, own) == url
    assert with_credentials(url, own) == url
