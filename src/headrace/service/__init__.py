"""The front end: HTTP requests in, the metrics of every event out."""
