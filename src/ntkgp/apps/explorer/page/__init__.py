"""What a page of the explorer shows and does in the browser, and the server behind it."""
