"""Where records come from. One file per kind of source."""
