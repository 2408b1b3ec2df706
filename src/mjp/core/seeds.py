"""One random generator per purpose, rank and step, all from a single seed."""

import hashlib

import torch


def seed_for(seed: int, purpose: str, *, rank: int = 0, step: int = 0) -> int:
    """A seed of 63 bits that depends on all of the arguments."""
    key = f"{seed}/{purpose}/{rank}/{step}".encode()
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def generator_for(
    seed: int,
    purpose: str,
    *,
    rank: int = 0,
    step: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Generator:
    """A fresh generator whose stream depends on all of its arguments but the device.

    Being a function of the step, it needs no state in a checkpoint: a resumed run asks for the
    generator of its step and gets the draws that the uninterrupted run had.
    """
    return torch.Generator(device).manual_seed(seed_for(seed, purpose, rank=rank, step=step))
