"""The page of ``iris dash``: a realm in a browser, from the same survey as ``iris top``.

Promises: one survey a second however many pages are open, and none when nobody looks; a browser that shows no token,
comes by another name or from another page gets nothing; no page is slower for another one that does not read.
"""
