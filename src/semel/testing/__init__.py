"""Tools for testing code that uses Semel: contract suites, fault proxies, private servers, a pytest plugin."""
