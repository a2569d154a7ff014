"""Subscriptions that make their consumer themselves (ADR-15, ADR-13): push, ordered push, pull."""
