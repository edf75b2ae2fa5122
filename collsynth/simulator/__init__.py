"""Event simulator."""
