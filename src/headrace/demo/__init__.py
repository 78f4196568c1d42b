"""A story in data: a day of card payments, the fraud in it, and which windows see it."""
