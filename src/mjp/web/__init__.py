"""`mjp serve`: a page to try attacks and defences on pictures of one's own."""

from mjp.core.verbs import Verb
from mjp.web.config import ServeOptions


def _serve(options: ServeOptions) -> None:
    from mjp.web.serving import serve

    serve(options)


VERBS = (Verb("serve", ServeOptions, _serve),)
