"""The `aotc` command. The only package that prints, and the only one that reads the environment."""
