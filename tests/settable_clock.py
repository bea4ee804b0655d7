"""A database whose clock a test can set while brokers run.

The offset is a row that `now()` and `clock_timestamp()` add to the system's time."""

from tests.database import Loop, TestDatabase, create_database

SETTABLE = """
CREATE TABLE clock_jump AS SELECT interval '0' AS by;
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT pg_catalog.clock_timestamp() + coalesce((SELECT by FROM public.clock_jump), interval ''0'')';
CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS
    'SELECT pg_catalog.now() + coalesce((SELECT by FROM public.clock_jump), interval ''0'')';
"""


class SettableClock(TestDatabase):
    """A migrated database whose clock differs from the system's time by an offset.

    Only sessions that begin after `create` use the replaced `now()` and `clock_timestamp()`,
    because the search_path is set for new sessions."""

    __test__ = False

    @classmethod
    def create(cls, postgres: str, loop: Loop, name: str) -> "SettableClock":
        database = cls(create_database(postgres, loop, name), loop)
        if not database.value("SELECT to_regclass('clock_jump') IS NOT NULL"):
            database.execute(SETTABLE + f'ALTER DATABASE "{name}" SET search_path = public, pg_catalog;')
        return database

    def jump(self, offset: str) -> None:
        """Sets the offset from the system's time to an interval such as '91 days'."""
        self.execute("UPDATE clock_jump SET by = $1::text::interval", offset)
