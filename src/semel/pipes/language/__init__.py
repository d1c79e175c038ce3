"""How a path is written: text, TOML and Python, all to one tree; and how it is drawn."""
