"""What a user can ask for: one file a verb, each a function from settings to a typed result. No printing, no
exit code."""
