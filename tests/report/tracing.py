"""Checks that every number of a page's tables and findings stands in a record it links to."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
CLOCK = re.compile(r"\d+:\d\d(:\d\d)?")


class _Node:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent = tag, dict(attributes), parent
        self.children, self.text = [], ""

    def classes(self):
        return (self.attributes.get("class") or "").split()

    def every(self):
        for child in self.children:
            if isinstance(child, _Node):
                yield child
                yield from child.every()

    def all(self, tag):
        return (node for node in self.every() if node.tag == tag)

    def words(self, without=()):
        parts = []
        for child in self.children:
            if isinstance(child, str):
                parts.append(child)
            elif not set(without) & {child.tag, *child.classes()}:
                parts.append(child.words(without))
        return " ".join(parts)


class _Tree(HTMLParser):
    VOID = ("meta", "img", "input", "br", "link", "hr")

    def __init__(self, text):
        super().__init__()
        self.root = self.at = _Node("root", (), None)
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        node = _Node(tag, attributes, self.at)
        self.at.children.append(node)
        if tag not in self.VOID:
            self.at = node

    def handle_endtag(self, tag):
        assert self.at.tag == tag, f"<{self.at.tag}> is closed by </{tag}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.children.append(data)


def tree(text):
    return _Tree(text).root


def _records(root):
    found = {}
    for item in root.all("li"):
        if re.fullmatch(r"r\d+", item.attributes.get("id", "")):
            body = json.loads(next(item.all("pre")).words())
            found["#" + item.attributes["id"]] = body
    return found


def _numbers_of(records):
    found = []
    for record in records:
        for value in (*record["conditions"].values(), *record["values"].values()):
            if isinstance(value, bool) or value is None:
                continue
            if isinstance(value, int | float):
                found.append(float(value))
            else:
                found += [float(one.replace("−", "-").replace(",", ""))
                          for one in NUMBER.findall(value.replace(",", " "))]  # fmt: skip
    return found


def _told(token, numbers):
    """Whether a text of a number is one of these, as it is or in percent, rounded."""
    bare = token.replace(",", "").replace("−", "-")
    value = float(bare)
    digits = len(bare.partition("e")[0].partition(".")[2])
    step = 10.0**-digits
    if "e" in bare:
        step *= 10 ** int(bare.partition("e")[2])
    near = 0.51 * step
    return any(
        abs(value - one) <= near + 1e-9 * abs(one) or abs(value - 100 * one) <= near
        or (digits == 0 and abs(value - float(f"{one:.3g}")) <= 1e-6 * abs(one))
        for one in numbers
    )  # fmt: skip


def untraced(text):
    """Numbers in rows and findings that no linked record holds, with where they stand; and how
    many were looked at."""
    root = tree(text)
    records = _records(root)
    wrong, seen = [], 0

    def check(node, words, numbers):
        nonlocal seen
        for token in NUMBER.findall(CLOCK.sub("", words).replace("2-D", "").replace("1-D", "")):
            seen += 1
            if not _told(token, numbers):
                wrong.append((token, " ".join(node.words().split())[:160]))

    for table in root.all("table"):
        heads = [
            " ".join(th.words().split()) for head in table.all("thead") for th in head.all("th")
        ]
        for row in table.all("tr"):
            links = [a.attributes["href"] for a in row.all("a") if "source" in a.classes()]
            cells = [one for one in row.children if isinstance(one, _Node)]
            for place, cell in enumerate(cells):
                papers = place < len(heads) and heads[place].startswith("Paper")
                if cell.tag != "td" or "n" not in cell.classes() or papers:
                    continue
                words = cell.words()
                if links:
                    check(row, words, _numbers_of(records[link] for link in links))
                elif NUMBER.search(words) and "the paper’s" not in row.words():
                    wrong.append((words, "a row of numbers without a record"))
    for item in (*root.all("li"), *root.all("p")):
        links = [a.attributes["href"] for a in item.all("a") if "source" in a.classes()]
        if links:
            words = item.words(without=("source",))
            check(item, words, _numbers_of(records[link] for link in links))
    return wrong, seen


def check_page(text):
    """What holds of every page: complete by itself, sound links, pictures with words."""
    root = tree(text)
    assert root.children
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    links = [link.attributes["href"] for link in root.all("a")]
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    pictures = [one.attributes for one in root.all("img")]
    assert all(one["alt"] and one["src"].startswith("data:image/") for one in pictures)
    assert len(list(root.all("script"))) == 1
    script = text.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text.replace("&#39;", "'")
    assert not list(root.all("link"))
    assert {"img", "a"} >= {
        node.tag for node in root.every() if {"src", "href"} & node.attributes.keys()
    }
    assert not any(name.startswith("on") for node in root.every() for name in node.attributes)
    assert "url(" not in text
    assert "@import" not in text
