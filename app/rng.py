"""The random number generator of the broker: for jitter, for the lane of a new job, and for the
lane at which a claim begins.

The broker does not use the generator of the module `random`: property tests seed that generator,
and fail if other code uses it. A broker that served a request in the same process made such a test
fail.
"""

from random import Random

rng = Random()
