"""`RefusedError`: a refusal, as a status of HTTP and a sentence that a person understands."""

from mjp.core.errors import MjpError


class RefusedError(MjpError):
    """A request that is refused.

    Args:
        status: of HTTP.
        retry_after: seconds after which it may be worth trying again.
    """

    def __init__(self, status: int, sentence: str, *, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
