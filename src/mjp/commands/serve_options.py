"""The options of `mjp serve`. Nothing here imports torch, so that `mjp --help` answers at once."""

from dataclasses import dataclass

from mjp.commands.options import Models


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """A page to try attacks and defences on pictures of your own.

    There is no log-in: whoever can reach the address can use it. Pictures are held in memory and
    never written.
    """

    host: str = "127.0.0.1"
    """Address to listen on; by default only this machine can reach it."""
    port: int = 8000
    """Port to listen on; 0 takes one that is free."""
    model: Models = ()
    """Models to offer beside the built-in ones, named as for mjp audit: a folder, a timm name,
    pretrained:NAME, NAME@FILE, LABEL=MODEL, …"""
    allow_host: tuple[str, ...] = ()
    """More names by which browsers may call this server, such as that of a proxy before it."""
    upload_megabytes: float = 16
    """Largest picture file that is taken."""
    megapixels: float = 24
    """Largest picture that is decoded."""
    jobs: int | None = None
    """Attacks that run at a time; by default one for every four cores, two at most."""
    waiting: int = 16
    """Attacks that may wait for their turn; more are refused."""
    seconds: float = 600
    """Longest that one attack may run."""
    kept: int = 100
    """Pictures, and as many results, that are held in memory; the oldest make room."""
    minutes: float = 30
    """How long a picture or a result is held after it was last asked for."""
    device: str | None = None
    """A torch device; the GPU if there is one."""
