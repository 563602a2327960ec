"""The demo of `tidemill demo`: a ledger of real bank payments, with its data."""
