"""CSV files as people upload them: a good one, and odd ones with the words that the page must say about each."""

GOOD = b"x,y\n1,2\n2,3\n3,5\n4,4\n"
ODD = {
    "empty": (b"", "my.csv is empty"),
    "blank": (b" \n\n", "my.csv is empty"),
    "only a byte-order mark": (b"\xef\xbb\xbf", "my.csv is empty"),
    "only a header": (b"a,b\n", "a header but 0 rows"),
    "one row": (b"a,b\n1,2\n", "1 row(s)"),
    "Latin-1": ("größe,b\n1,2\n3,4\n".encode("latin-1"), "not UTF-8 text"),
    "UTF-16": ("a,b\n1,2\n3,4\n".encode("utf-16"), "not a text file"),
    "no names": (b",\n1,2\n3,4\n", "no column with a name"),
    "the same name twice": (b"a,a\n1,2\n3,4\n", "two columns &#x27;a&#x27;"),
    "infinite": (b"a,b\n1,inf\n2,-inf\n", "0 row(s) with a finite number"),
    "huge": (b"a,b\n1,1e200\n2,3\n", "1e+200 in column"),
    "a loose quote": (b'a,b\n1,2"\n"', "cannot be read as CSV"),
    "too small to scale": (b"a,b\n1,1e-310\n2,2e-310\n3,5e-310\n", "its square underflows"),  # found by the fit
}
