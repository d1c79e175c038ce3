"""The REST API and the operators' API: from an HTTP request to a call on a hub, and the answer back."""
