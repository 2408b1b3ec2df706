"""Receives the body of a request into memory, never more of it than is allowed."""

import asyncio
from collections.abc import AsyncIterator

from mjp.web.refusing import RefusedError

DRAIN_SECONDS = 1.0
"""How long what is too much is read and dropped, so that the sender gets to read the answer."""


async def received(
    chunks: AsyncIterator[bytes], declared: str | None, limit: int, seconds: float
) -> bytes:
    """The whole body.

    Args:
        declared: what the sender says its length is.
        seconds: for all of it to arrive.
    """
    try:
        async with asyncio.timeout(seconds):
            if declared is not None and _length(declared) > limit:
                raise await _too_large(chunks, limit)
            found = bytearray()
            async for chunk in chunks:
                found += chunk
                if len(found) > limit:
                    raise await _too_large(chunks, limit)
            return bytes(found)
    except TimeoutError as error:
        raise RefusedError(408, f"The file did not arrive within {seconds:g} seconds.") from error


def _length(declared: str) -> int:
    if not declared.isascii() or not declared.isdigit():
        raise RefusedError(400, "The header Content-Length is no number.")
    return int(declared[:20])


async def _too_large(chunks: AsyncIterator[bytes], limit: int) -> RefusedError:
    dropped = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for chunk in chunks:
                dropped += len(chunk)
                if dropped > limit:
                    break
    except TimeoutError:
        pass  # A sender that slow may as well meet a closed door.
    size = f"{limit / 1e6:g} MB" if limit >= 100_000 else f"{limit // 1000} kB"
    return RefusedError(
        413, f"That is too large; at most {size} are taken. Send something smaller."
    )
