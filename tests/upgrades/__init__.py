"""Migrations, roles, and two releases side by side."""
