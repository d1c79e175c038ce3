"""What Azure Web PubSub's protocols say: frames, tokens, permissions, filters, sessions and hubs. Pure."""
