"""Flows: stages joined by queues, and the machines that run them."""
