"""What `make` runs beside the tests: generators of files, the image check; and tests of CI and bench."""
