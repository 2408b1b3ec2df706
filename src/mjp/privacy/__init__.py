"""What a shared gradient gives away: what is shared, attacks on it, defences, the audit."""
