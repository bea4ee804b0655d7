"""The floor: knows Postgres, knows no job."""
