"""The performance page: one module per section, named after its benchmark."""
