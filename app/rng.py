"""The random numbers of the broker: jitter, lanes, first lanes of claims.

Not the generator of the module `random`: property tests seed that one, and detect other users of
it. A broker that served a request in the same process made such a test fail.
"""

from random import Random

rng = Random()
