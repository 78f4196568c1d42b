"""Output in source order: data paths, and the merge of what comes along them."""
