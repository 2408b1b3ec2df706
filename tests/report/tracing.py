"""Checks that every number of a page's tables and findings stands in a record it links to."""

import base64
import hashlib
import json
import re
from xml.etree import ElementTree

NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
CLOCK = re.compile(r"\d+:\d\d(:\d\d)?")


def tree(text):
    """The page as XML, which it is but for a few tags: each is closed, or this fails."""
    text = re.sub(r"<!doctype html>|(?<=<script>).*?(?=</script>)", "", text, flags=re.DOTALL)
    text = re.sub(r"<((?:meta|img|input|br)\b[^>]*)>", r"<\1/>", text)
    return ElementTree.fromstring(text.replace("<details open>", '<details open="">'))


def words(node):
    return " ".join(" ".join(node.itertext()).split())


def _told_apart(node):
    """The words of an element without those of its links to records, and what these lead to."""
    links = [one for one in node.iter("a") if one.get("class") == "source"]
    text = words(node)
    for link in reversed(links):
        text = text[: text.rindex(link.text)]
    return text, [link.get("href") for link in links]


def _records(root):
    items = (item for item in root.iter("li") if re.fullmatch(r"r\d+", item.get("id", "")))
    return {f"#{item.get('id')}": json.loads(item.findtext("pre")) for item in items}


def _numbers_of(records):
    for record in records:
        for value in (*record["conditions"].values(), *record["values"].values()):
            if isinstance(value, str):
                found = NUMBER.findall(value.replace(",", " "))
                yield from (float(one.replace("−", "-")) for one in found)
            elif value is not None and not isinstance(value, bool):
                yield float(value)


def _is_told(token, numbers):
    """Whether a text of a number is one of these, as it is or in percent, rounded."""
    bare = token.replace(",", "").replace("−", "-")
    value = float(bare)
    mantissa, _, power = bare.partition("e")
    digits = len(mantissa.partition(".")[2])
    near = 0.51 * 10.0 ** (int(power or 0) - digits)
    return any(
        abs(value - one) <= near + 1e-9 * abs(one)
        or abs(value - 100 * one) <= near
        or (digits == 0 and abs(value - float(f"{one:.3g}")) <= 1e-6 * abs(one))
        for one in numbers
    )


def untraced(text):
    """Numbers in rows and findings that no linked record holds, with where they stand; and how
    many were looked at."""
    root = tree(text)
    records = _records(root)
    wrong, seen = [], 0

    def check(text, links, where):
        nonlocal seen
        numbers = list(_numbers_of(records[link] for link in links))
        for token in NUMBER.findall(CLOCK.sub("", text).replace("2-D", "").replace("1-D", "")):
            seen += 1
            if not _is_told(token, numbers):
                wrong.append((token, where[:160]))

    for table in root.iter("table"):
        heads = [words(head) for head in table.iterfind("thead/tr/th")]
        for row in table.iter("tr"):
            _, links = _told_apart(row)
            for place, cell in enumerate(row):
                papers = place < len(heads) and heads[place].startswith("Paper")
                if cell.tag != "td" or cell.get("class") != "n" or papers:
                    continue
                if links:
                    check(words(cell), links, words(row))
                elif NUMBER.search(words(cell)) and "the paper’s" not in words(row):
                    wrong.append((words(cell), "a row of numbers without a record"))
    for item in (*root.iter("li"), *root.iter("p")):
        text, links = _told_apart(item)
        if links:
            check(text, links, text)
    return wrong, seen


def check_page(text):
    """What holds of every page: complete by itself, sound links, pictures with words."""
    root = tree(text)
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    links = [link.get("href") for link in root.iter("a")]
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert all(one.get("alt") and one.get("src").startswith("data:") for one in root.iter("img"))
    (script,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text.replace("&#39;", "'")
    assert {"img", "a"} >= {node.tag for node in root.iter() if {"src", "href"} & {*node.attrib}}
    assert not any(name.startswith("on") for node in root.iter() for name in node.attrib)
    assert "url(" not in text
    assert "@import" not in text
