"""Pages for a browser: one file each, with its own drawings and script, that asks the network for nothing."""
