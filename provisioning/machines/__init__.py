"""Virtual machines: how a guest is started, reached and ended."""
