"""Jobs as they are stored: read, list, update, cancel. Owns scheduled, blocked and ready jobs."""
