"""The only room that touches an accelerator's API."""
