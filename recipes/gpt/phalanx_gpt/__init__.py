"""A small GPT on text that is made up as it is read: network and text of a recipe."""
