"""Subscriptions that create their own consumer (ADR-15, ADR-13): push, ordered push, pull."""
