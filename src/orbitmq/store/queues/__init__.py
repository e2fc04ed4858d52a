"""Consume queues and their filter extensions."""
