"""The page for people: its files, and what turns Markdown into the elements that it may show."""
