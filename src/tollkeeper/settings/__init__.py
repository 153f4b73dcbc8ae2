"""Settings: the only reader of environment, configuration file and key files (contract 1, security A-26).

Promises:
- `load_settings` gives the checked configuration of a process or, as SettingsError, everything that is wrong with it.
- An option wins over the environment, the environment over the file; an unknown name is an error.
- A secret comes from a file that nobody else can read, or from the environment; no error and no repr shows it.
- There are at most 45 settings beside those of networks, counted by a test. What nobody needs to turn is a constant,
  with its reason where it stands.

Begin with `model`, then `loading`, which gives each its meaning and default; `sources` finds the texts. This package
opens no database and no connection.
"""
