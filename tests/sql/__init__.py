"""What plain Postgres can prove about the SQL: the catalogue, the text, the shapes, the plans, and lanes as partitions."""
