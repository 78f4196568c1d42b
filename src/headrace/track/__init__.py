"""Knowing when all of a substream is done: tokens, local tables, reports, the agent, and links between queries."""
