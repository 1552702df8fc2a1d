"""Where a fleet is run: `netns` builds a world of network namespaces from the parts beside it."""
