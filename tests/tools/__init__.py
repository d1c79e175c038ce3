"""What several folders of tests share: servers, clusters, ledgers with a known truth, plugins for pytest."""
