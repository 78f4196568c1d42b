"""State as versions: immutable files, and manifests that name them."""
