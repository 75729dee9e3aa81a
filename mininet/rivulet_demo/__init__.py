"""Rivulet demos: a rack in Mininet."""
