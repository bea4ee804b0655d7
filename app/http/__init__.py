"""HTTP as every package uses it: authentication, bodies, responses, errors. Knows no job."""
