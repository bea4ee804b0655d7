"""The door: knows HTTP, knows no job."""
