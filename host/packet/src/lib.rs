//! The Rivulet wire format: parsing and building, docs/wire-format.md in code.
