"""From files to token ids: reading rows, conversations, chat templates, tokenising as a trainer did."""
