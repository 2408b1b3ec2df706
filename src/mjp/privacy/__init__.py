"""What a shared gradient gives away: what is shared, attacks on it, defences, the audit."""

from mjp.privacy.tables import SECTIONS as SECTIONS
