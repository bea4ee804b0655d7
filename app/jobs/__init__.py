"""Jobs as they are stored: inserted, read, listed, updated and cancelled."""
