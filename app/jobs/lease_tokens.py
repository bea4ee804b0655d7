"""Lease tokens: the fencing token of a lease, and the claim that it belongs to.

    bits    64     64
    field   claim  hash of the claim secret and the job id

`claim` identifies the jobs that one poll has claimed from a lane, so that their lease check is found
by any of their tokens. It is a hash of the secret, too: whoever knows the secret and the ids of the
jobs knows their tokens, which is what makes a claim repeatable. A worker knows only the tokens of
its own jobs. They do not tell it the secret, and so not the 64 bits of any other token.
"""

from hashlib import md5
from uuid import UUID


def claim_of(secret: str, slice_number: int = 1) -> str:
    """Computes the first half of the tokens of one slice of a claim, as 16 hex digits."""
    return _hash(f"{secret}{slice_number}")[:16]


def lease_token(secret: str, job_id: UUID) -> UUID:
    """Computes the lease token of a job in the first slice, as the function `claim_jobs` does."""
    return UUID(claim_of(secret) + _hash(f"{secret}{job_id}")[16:])


def _hash(text: str) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()
