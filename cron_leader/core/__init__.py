"""The pure core: it decides. No asyncio, no clock, no randomness, no logging, no I/O."""
