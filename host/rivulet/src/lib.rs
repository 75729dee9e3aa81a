//! The rivulet command: serve, get, run, agent, inspect.
