"""An update from a real run, without any picture: what can be recovered from it."""

from rich.markup import escape
from rich.table import Table

from mjp.commands.audit_options import AuditOptions
from mjp.commands.audit_work import write_picture
from mjp.commands.terminal import meter, results
from mjp.core.errors import ConfigError
from mjp.core.records import Record, Scalar, append_records
from mjp.models.facts import fingerprint
from mjp.privacy.attacking import attack
from mjp.privacy.ledger import file_name
from mjp.privacy.public import PublicModel
from mjp.privacy.result import AttackResult, Effort
from mjp.privacy.update import SharedUpdate


def audit_update(options: AuditOptions, models: dict[str, PublicModel]) -> None:
    """Attacks an update of a file; shows the preflight and what came out."""
    if len(models) > 1:
        raise ConfigError("an update is of one model; name that one with --model")
    ((label, public),) = models.items()
    assert options.update is not None
    update = SharedUpdate.load(options.update)
    found: list[AttackResult] = []
    with meter("attacking", 100 * len(options.attacks)) as tell:
        for name in options.attacks:
            done = 0.0

            def progress(share: float) -> None:
                nonlocal done
                before, done = int(100 * done), done + share
                tell(int(100 * done) - before)

            effort = Effort(options.steps, options.restarts, options.seed, progress)
            found.append(attack(name, public, update, effort=effort))
    facts: dict[str, Scalar] = {"model": label, "weights": fingerprint(public.model)}
    facts["update"] = options.update.name
    records = [_record(facts, one) for one in found]
    append_records(options.out / "records.jsonl", records)
    if options.json:
        for record in records:
            print(record.to_json(), flush=True)
    else:
        results().print(_preflight(found[0]))
        results().print(_table(found))
    for one in found:
        for number, image in enumerate(() if one.images is None else one.images):
            path = options.out / f"{file_name('recovered', one.attack, number)}.png"
            write_picture(path, image)
            if not options.json:
                print(f"picture: {path}")
    if not options.json:
        print(f"records: {options.out / 'records.jsonl'}")


def _record(facts: dict[str, Scalar], found: AttackResult) -> Record:
    values: dict[str, Scalar] = {
        "applies": found.applies,
        "reason": found.reason,
        **dict(found.facts),
        "labels": None if found.labels is None else " ".join(map(str, found.labels.tolist())),
    }
    return Record("audit update", {**facts, "attack": found.attack}, values)


def _preflight(found: AttackResult) -> Table:
    table = Table(title="the update, as an attacker reads it")
    table.add_column("fact")
    table.add_column("")
    for name, value in found.facts.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        table.add_row(name.replace("_", " "), escape(shown))
    return table


def _table(found: list[AttackResult]) -> Table:
    table = Table(title="attacks; without the pictures nobody can say how good these are: look")
    table.add_column("attack")
    table.add_column("applies")
    table.add_column("remarks", overflow="fold")
    for one in found:
        table.add_row(one.attack, "yes" if one.applies else "no", escape(one.reason))
    return table
