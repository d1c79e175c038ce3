pytest_plugins = ["semel.testing.plugin"]
