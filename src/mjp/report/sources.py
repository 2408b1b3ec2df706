"""`Sources`: which record each number of a page comes from, told by a link to the record."""

from collections.abc import Iterable

from markupsafe import Markup, escape

from mjp.core.records import Record
from mjp.report.runs import Entry


class Sources:
    """Numbers records in the order in which a page first uses them.

    Args:
        entries: all that the page may use, with the files they are from.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {id(one.record): one for one in entries}
        self._numbers: dict[int, int] = {}

    def link(self, *records: Record | None) -> Markup:
        """Links to the records, in place of a cell's text."""
        numbers = [self._number(record) for record in records if record is not None]
        parts = [
            Markup('<a class="source" href="#r{0}" aria-label="record {0}">{0}</a>').format(number)
            for number in dict.fromkeys(numbers)
            if number
        ]
        return Markup(" ").join(parts)

    def _number(self, record: Record) -> int:
        """The record's number; 0 for one that stands in no file."""
        if id(record) not in self._entries:
            return 0
        return self._numbers.setdefault(id(record), len(self._numbers) + 1)

    @property
    def used(self) -> list[tuple[int, Entry]]:
        """The entries that were linked to, by their numbers."""
        return [(number, self._entries[key]) for key, number in self._numbers.items()]

    def listing(self) -> Markup:
        """All that were linked to, as they stand in their files."""
        items = []
        for number, entry in self.used:
            head = Markup('<li id="r{}" value="{}"><code>{}</code>, line {}: {}').format(
                number, number, entry.file, entry.line, entry.record.kind
            )
            items.append(head + Markup("<pre>{}</pre></li>").format(escape(entry.text)))
        return Markup("\n").join(items)
