"""Races against other systems, and the papers' figures. One file a bench; `harness` is what they share."""
