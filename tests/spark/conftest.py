from headrace.testing.spark import spark  # noqa: F401
