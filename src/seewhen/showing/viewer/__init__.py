"""The page that shows what a model saw: one static HTML file with its data inside.

`payload` turns traces into plain data, `page` puts the data and the assets into one file. Nothing is
fetched when the page is opened.
"""
