"""The management of PayGates: `/api/v1/paygates` and what it shares."""
