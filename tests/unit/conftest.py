"""How properties are tried: without a clock, and without a memory of earlier runs."""

from hypothesis import settings

settings.register_profile("house", deadline=None, database=None)
settings.load_profile("house")
