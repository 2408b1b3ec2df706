"""What a shared gradient gives away: what is shared, attacks on it, defences, the audit."""

from mjp.core.verbs import Verb
from mjp.privacy.config import AuditOptions
from mjp.privacy.tables import SECTIONS as SECTIONS


def run(options: AuditOptions) -> None:
    from mjp.privacy.command import run_audit

    run_audit(options)


VERBS = (Verb("audit", AuditOptions, run),)
